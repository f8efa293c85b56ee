"""How Elasticsearch 8 is started without its launcher: what that one does is done here.

The launcher (`server-cli`) is not published as an artifact. It starts the server as a module and
writes `ServerArgs` to its standard input, in the node's own stream format; the server then keeps
reading there and ends when the pipe breaks. Source of the format: ServerArgs, KeyStoreWrapper,
Settings and StreamOutput of Elasticsearch 8.15.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from refill.engines.native import Dialect, Image, native_library

NAME = "elasticsearch"
MAIN = "org.elasticsearch.server/org.elasticsearch.bootstrap.Elasticsearch"
KEYSTORE = "org.elasticsearch.common.settings.KeyStoreWrapper"
KEYSTORE_VERSION = 6
CONSOLE = "org/elasticsearch/io/ansi/AnsiConsoleLoader"
_STRING = b"\0"
NO_X_PACK = {
    "xpack.security.enabled": "false",
    "xpack.ml.enabled": "false",
    "xpack.watcher.enabled": "false",
    "xpack.profiling.enabled": "false",
}
NO_DOWNLOADS = {"ingest.geoip.downloader.enabled": "false"}


def _settings(home: Path) -> Mapping[str, str]:
    """Switch off what a release has and a home of artifacts does not know."""
    found: dict[str, str] = {}
    if (home / "modules" / "x-pack-security").is_dir():
        found |= NO_X_PACK
    if (home / "modules" / "ingest-geoip").is_dir():
        found |= NO_DOWNLOADS
    return found


def _flags(home: Path, _: Path, __: Path) -> Sequence[str]:
    library = native_library(home)
    return [
        "-Des.networkaddress.cache.ttl=60",
        "-Des.networkaddress.cache.negative.ttl=10",
        "-Djava.security.manager=allow",
        "-Dlog4j2.formatMsgNoLookups=true",
        "-Djava.locale.providers=SPI,COMPAT",
        "-Des.distribution.type=tar",
        f"-Djava.library.path={library}",
        f"-Djna.library.path={library}",
        "--add-opens=java.base/java.io=org.elasticsearch.preallocate",
    ]


def _start(home: Path) -> Sequence[str]:
    modules = ["--module-path", str(home / "lib"), "--add-modules=jdk.net"]
    return [*modules, "--add-modules=ALL-MODULE-PATH", "-m", MAIN]


def server_arguments(settings: Mapping[str, str], config: Path, logs: Path) -> bytes:
    """Give `ServerArgs` as the server reads it: attached, not quiet, no secrets, the settings."""
    keystore = struct.pack(">i", KEYSTORE_VERSION) + b"\0" + b"\0" + _number(0) + b"\0"
    pairs = b"".join(_text(k) + _STRING + _text(v) for k, v in settings.items())
    # daemonize, quiet and the file for the process number: no to all three.
    return b"".join(
        [
            b"\0\0\0", _text(KEYSTORE), keystore, _number(len(settings)), pairs,
            _text(str(config)), _text(str(logs)),
        ]
    )  # fmt: skip


def complete(home: Path) -> None:
    """Put an empty console where the server looks for one, unless a release's own is there.

    It loads the class `AnsiConsoleLoader` from `lib/tools/ansi-console` before anything else and
    takes None for "no console". The class is written here as bytes, so that no compiler is needed.
    """
    folder = home / "lib" / "tools" / "ansi-console"
    if folder.is_dir():
        return
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "no-console.jar", "w") as jar:
        # A fixed date, so that the same bytes come out every time.
        jar.writestr(zipfile.ZipInfo(f"{CONSOLE}.class"), _console_class())


def _console_class() -> bytes:
    """Give a class file: `public class AnsiConsoleLoader implements Supplier` whose `get` is null.

    Source: The Java Virtual Machine Specification, Java SE 17, chapter 4.
    """
    out = io.BytesIO()
    names = [CONSOLE, "java/lang/Object", "java/util/function/Supplier"]
    words = ["<init>", "()V", "get", "()Ljava/lang/Object;", "Code"]
    # Constants 1 to 6: each class and its name; 7 to 11: the words; 12, 13: Object's constructor.
    out.write(struct.pack(">IHHH", 0xCAFEBABE, 0, 61, 14))
    for place, name in enumerate(names):
        out.write(struct.pack(">BH", 7, 2 * place + 2) + _utf8(name))
    for word in words:
        out.write(_utf8(word))
    out.write(struct.pack(">BHH", 12, 7, 8) + struct.pack(">BHH", 10, 3, 12))
    # Public, this class, its parent, one interface, no field, two methods.
    out.write(struct.pack(">HHHHHHH", 0x21, 1, 3, 1, 5, 0, 2))
    # The constructor calls Object's: aload_0, invokespecial #13, return.
    out.write(_method(7, 8, b"\x2a\xb7\x00\x0d\xb1"))
    # get: aconst_null, areturn.
    out.write(_method(9, 10, b"\x01\xb0"))
    out.write(struct.pack(">H", 0))
    return out.getvalue()


def _method(name: int, kind: int, code: bytes) -> bytes:
    body = struct.pack(">HHI", 1, 1, len(code)) + code + struct.pack(">HH", 0, 0)
    return struct.pack(">HHHHHI", 1, name, kind, 1, 11, len(body)) + body


def _utf8(text: str) -> bytes:
    return struct.pack(">BH", 1, len(text)) + text.encode("ascii")


def _number(value: int) -> bytes:
    """Write a number as StreamOutput.writeVInt does: seven bits a byte, lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _text(value: str) -> bytes:
    """Write a text as StreamOutput.writeString does: its length in UTF-16 units, then UTF-8.

    Characters beyond the first plane are written there as two, which no path here needs.
    """
    return _number(len(value)) + value.encode()


# Source: distribution/docker/src/docker/bin/docker-entrypoint.sh of Elasticsearch 8.15.
IMAGE = Image("/usr/share/elasticsearch/data", "ES_JAVA_OPTS", {**NO_X_PACK, **NO_DOWNLOADS})
_REASONS = {
    "xpack.security.enabled": "on loopback, without TLS and users, as the gateway is asked",
    "xpack.ml.enabled": "a process of its own that would run beside it",
    "xpack.watcher.enabled": "work by the clock",
    "xpack.profiling.enabled": "work by the clock",
    "ingest.geoip.downloader.enabled": "a download in the background",
}
STARTED = (
    "as a module, its settings on its standard input: what does that in a release, its launcher, "
    "is published as no artifact"
)
DIALECT = Dialect(
    NAME,
    _settings,
    _flags,
    _start,
    server_arguments,
    lambda temporary: {"LIBFFI_TMPDIR": str(temporary), "ES_TMPDIR": str(temporary)},
    IMAGE,
    STARTED,
    _REASONS,
)
