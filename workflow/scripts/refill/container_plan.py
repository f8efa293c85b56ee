"""What containers replace of the configuration: images, named as their records are, and budgets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import closing
from pathlib import Path
from typing import Any

from refill.config.load import DOCKER

# Rules whose jobs need the daemon.
ROUND_RULES = frozenset(("native_engine", "round_on", "round_off", "proof"))
RULES = frozenset(("image", "pulled_image", "optimizer", *ROUND_RULES))


class ContainerPlan:
    """The sections `runtime` and `docker` of a checked configuration.

    Attributes:
        used: whether engines run in containers.
        pulled: images that are pulled, by the names of their records.
        qdrant: name of the record of Qdrant's image; None where there is none.
        valkey: name of the record of Valkey's; None where none is needed.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.used = config["runtime"] == DOCKER
        self.pulled: dict[str, str] = {}
        self._docker: Mapping[str, Any] = config["docker"]
        self._runtime: str = config["runtime"]
        self._on_cluster = config.get("node_cpus") is not None
        self.qdrant: str | None = config["qdrant"].get("image")
        self.valkey: str | None = None
        if self.used:
            self.qdrant, self.valkey = self._named("qdrant"), self._named("valkey")

    def _named(self, part: str) -> str:
        given = self._docker[part]
        if built := given.get("image"):
            return str(built)
        self.pulled[part] = given["pull"]
        return part

    def image(self, name: str) -> dict[str, Any]:
        """Give what the plan of an image says of how it is built, or where it is pulled from."""
        if not self.used:
            return {"runtime": self._runtime}
        if name in self.pulled:
            return {**self.measurement("host"), "pull": self.pulled[name]}
        return self.measurement("host", "base", "python")

    def native_engine(self, name: str) -> dict[str, Any]:
        """Give what the plan of a native engine says of its image."""
        return {**self.measurement("host"), "pull": self._docker[name]["pull"]}

    def measurement(self, *keys: str) -> dict[str, Any]:
        """Give what the plan of a measurement holds of containers; nothing where there are none."""
        if not self.used:
            return {}
        return {"runtime": DOCKER, "docker": {key: self._docker[key] for key in keys}}

    def proof(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Give the section of the proof with the images that containers use in their places."""
        if not self.used:
            return dict(given)
        images = {**given["images"], "qdrant": self.qdrant, "valkey": self.valkey}
        return {**given, **self.measurement("host"), "images": images}

    def round_cpus(self, given: int, otherwise: int) -> int:
        """Give the CPUs that Qdrant may use in a round: in containers those of its budget."""
        budget: int = self._docker["budget"]["cpus"]
        return given or budget if self.used else otherwise

    def needs_daemon(self, rules: Iterable[str]) -> bool:
        """Say whether jobs of these rules need a Docker daemon of this machine.

        On a cluster it is that of the nodes, which only the jobs see.
        """
        return self.used and not self._on_cluster and not RULES.isdisjoint(rules)

    def check_daemon(
        self, rules: Set[str], qdrant: Sequence[str], records: Sequence[str], made: Set[str]
    ) -> None:
        """Ask the daemon, where jobs need it, for a sign of life and for the recorded images.

        Which rounds run is known only behind the native engines, so what they need is asked for
        together with these.

        Args:
            rules: whose jobs run.
            qdrant: records of the image that an optimizer run needs.
            records: of all images, and of native engines, which may have one.
            made: what the jobs make anew; it is not asked for.

        Raises:
            DockerError: it is absent, refuses, or has an image no more; in one line.
        """
        if not self.needs_daemon(rules):
            return
        # Imported here: a run without containers needs nothing of it.
        from refill.runtimes.docker_daemon import connect
        from refill.runtimes.docker_pulls import all_present

        needed = records if rules & ROUND_RULES else qdrant if "optimizer" in rules else []
        there = [Path(path) for path in needed if path not in made and Path(path).exists()]
        with closing(connect(self._docker["host"])) as client:
            all_present(client, there)
