"""How OpenSearch 3 is started: plain class path, settings in a file, no launcher in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from refill.engines.native import Dialect, Image

NAME = "opensearch"
MAIN = "org.opensearch.bootstrap.OpenSearch"


def _settings(home: Path) -> Mapping[str, str]:
    """Switch off what a release has and a home of artifacts does not know."""
    if (home / "plugins" / "opensearch-security").is_dir():
        return {"plugins.security.disabled": "true"}
    return {}


def _flags(home: Path, config: Path, _: Path) -> Sequence[str]:
    flags = [
        f"-Dopensearch.path.home={home}",
        f"-Dopensearch.path.conf={config}",
        "-Dopensearch.distribution.type=tar",
        "--enable-native-access=ALL-UNNAMED",
    ]
    agent = home / "agent" / "opensearch-agent.jar"
    if agent.is_file():
        flags.append(f"-javaagent:{agent}")
    return flags


def _start(home: Path) -> Sequence[str]:
    return ["-cp", f"{home / 'lib'}/*", MAIN]


# Source: docker/release/config/opensearch/opensearch-docker-entrypoint.sh of opensearch-build.
IMAGE = Image(
    "/usr/share/opensearch/data",
    "OPENSEARCH_JAVA_OPTS",
    {
        "DISABLE_SECURITY_PLUGIN": "true",
        "DISABLE_INSTALL_DEMO_CONFIG": "true",
        "DISABLE_PERFORMANCE_ANALYZER_AGENT_CLI": "true",
    },
)
_PLAIN = "on loopback, without TLS and users, as the gateway is asked"
_REASONS = {
    "plugins.security.disabled": _PLAIN,
    "DISABLE_SECURITY_PLUGIN": _PLAIN,
    "DISABLE_INSTALL_DEMO_CONFIG": "nothing is written that only security needs",
    "DISABLE_PERFORMANCE_ANALYZER_AGENT_CLI": "a second process that would run beside it",
}
STARTED = "by its main class from a class path, its settings in a file, without a launcher"
DIALECT = Dialect(NAME, _settings, _flags, _start, None, lambda _: {}, IMAGE, STARTED, _REASONS)
