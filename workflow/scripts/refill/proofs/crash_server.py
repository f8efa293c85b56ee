"""The server is killed at random points under concurrent writers, readers, claims and fills.

An episode is one data set with several kills. What is drawn follows from the episode's seed: who
goes on at each step, how many steps there are before a kill, when it comes, and what each client
wants at each of its steps, by a stream of its own for each client and step. What is answered does
not follow from it: in which order the server takes calls that are in flight together, which of them
it finishes when it is killed, and how often clients go on until it is dead. A client whose answer
differs goes on otherwise; the others' draws stay what they were. So a replay is the same attack and
not the same history, and a fault that needs a rare order may need several.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from redis import Connection
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from refill.proofs.actors import Lost, Steps, any_client
from refill.proofs.calls import Call, Index, plain
from refill.proofs.findings import BEYOND, Check, Findings, told_of_episode
from refill.proofs.servers import DEFAULT, Server
from refill.proofs.subject import Subject
from refill.proofs.world import FILLS, NAMES, World

ID = "crash-server"
KILLS_AN_EPISODE = 10
CLIENTS = 8
MOST_FAILURES = 5
# Steps between two kills, and how long after sending the last calls the server is killed, in s.
STEPS = (4, 40)
KILL_AFTER_S = 0.0006
# Until the server of a kill is dead.
KILL_S = 60.0
REWRITES = 0.02


class Client:
    """A client and its connection.

    Attributes:
        number: in the history.
        chance: what it draws from, seeded anew at each of its steps.
        reply: of its last call, not told to it yet.
        waits: its last call was sent and not answered yet.
        lost: the server was killed under its last call, or before it.
    """

    def __init__(self, server: Server, number: int) -> None:
        self._server = server
        self.number = number
        self.chance = random.Random()
        self.steps: Steps | None = None
        self.reply: Any = None
        self.waits = False
        self.lost = False
        # redis-py has no types for its connections.
        self._connection: Any = None

    def send(self, call: Call) -> None:
        """Send a call and do not wait, or learn that there is no server any more."""
        try:
            self._send(call)
            self.waits = True
        except (RedisError, OSError):
            self.lost = True

    def _send(self, call: Call) -> None:
        if self._connection is None:
            make: Any = Connection
            address = self._server.engine.address
            self._connection = make(
                host=address.host, port=address.port, password=self._server.password,
                retry=Retry(NoBackoff(), 0), socket_timeout=10.0,
            )  # fmt: skip
            self._connection.connect()
        source = self._server.sources[call.name]
        # By the source: a script that a restart forgot is no matter here.
        self._connection.send_command("EVAL", source, len(call.keys), *call.keys, *call.arguments)

    def receive(self) -> None:
        """Take the reply, or learn that there will be none."""
        self.waits = False
        try:
            self.reply = plain(self._connection.read_response())
        except (RedisConnectionError, OSError):
            self.lost = True

    def disconnect(self) -> None:
        """Drop the connection."""
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None


class Episode:
    """One data set, its clients, and several kills.

    Args:
        seed: of all that is drawn.
    """

    def __init__(self, server: Server, seed: str, kills: int) -> None:
        self._server = server
        self._seed = seed
        self._kills = kills
        # The step, and how often clients have gone on in it: what streams are named by.
        self._place: tuple[object, ...] = ()
        self._chance = random.Random()
        self._rounds = 0
        self.world = World()
        self._clients = [Client(server, number) for number in range(CLIENTS)]

    def run(self) -> None:
        """Run it; what it found stands in `world`."""
        self._server.run(Index().set_epoch())
        for kill in range(1, self._kills + 1):
            for step in range(1, self._stream(kill).randint(*STEPS) + 1):
                self._step(kill, step)
            self._kill_under_calls(kill)
            self._server.kill()
            for client in self._clients:
                client.disconnect()
            self._server.start()
            self.world.audit(self._server, f"after kill {kill}")
            if self.world.failures:
                return
        self._recover()

    def _step(self, kill: int, step: int) -> None:
        self._begin(kill, f"step {step}")
        chosen = self._send(self._chance.randint(1, CLIENTS - 2))
        if self._chance.random() < REWRITES:
            self._rewrite()
        for client in chosen:
            if client.waits:
                self._receive(client)
            if client.lost:
                self.world.fail("the server closed a connection without being killed")

    def _kill_under_calls(self, kill: int) -> None:
        """Kill the server while all clients call it, until one of them gets no answer.

        A process is dead before its first answers are out; the daemon takes its time with a
        container.
        """
        self._begin(kill, "the kill")
        wait_s = self._chance.uniform(0, KILL_AFTER_S)
        deadline = time.monotonic() + KILL_S
        with ThreadPoolExecutor(1) as pool:
            self._send(CLIENTS)
            killing = pool.submit(self._kill_after, wait_s)
            while True:
                waiting = [client for client in self._clients if client.waits]
                for client in waiting:
                    self._receive(client)
                if any(client.lost for client in self._clients) or time.monotonic() > deadline:
                    break
                self._send(CLIENTS)
            killing.result()
        counts = self.world.counts
        counts["kills"] += 1
        counts["calls in flight at a kill"] += len(waiting)
        counts["calls that a kill left unanswered"] += sum(client.lost for client in waiting)

    def _kill_after(self, seconds: float) -> None:
        time.sleep(seconds)
        self._server.engine.kill()

    def _begin(self, kill: int, step: str) -> None:
        self._place = (kill, step)
        self._chance = self._stream(*self._place)
        self._rounds = 0
        self.world.now = f"kill {kill}, {step}"

    def _stream(self, *names: object) -> random.Random:
        return random.Random(" ".join(map(str, (self._seed, *names))))

    def _send(self, number: int) -> list[Client]:
        """Let so many clients go on; which ones."""
        chosen = self._chance.sample(self._clients, number)
        self._rounds += 1
        self.world.note("go on", clients=[client.number for client in chosen])
        for client in chosen:
            client.chance.seed(f"{self._seed} {self._place} {self._rounds} {client.number}")
            self._advance(client)
        return chosen

    def _receive(self, client: Client) -> None:
        client.receive()
        if client.lost:
            self.world.note("no answer", client=client.number)
        else:
            self.world.note("answer", client=client.number, reply=client.reply)

    def _advance(self, client: Client) -> None:
        """Let a client go on, to its next call or a pause."""
        if client.steps is None:
            client.steps = any_client(self.world, client.chance)
            self.world.note("begins", client=client.number)
            client.reply, client.lost = None, False
        lost, reply = client.lost, client.reply
        client.lost, client.reply = False, None
        try:
            call = client.steps.throw(Lost()) if lost else client.steps.send(reply)
        except StopIteration:
            client.steps = None
            return
        if call is not None:
            called = {"keys": list(call.keys), "arguments": list(call.arguments)}
            self.world.note(call.name, client=client.number, **called)
            client.send(call)

    def _rewrite(self) -> None:
        try:
            self._server.client.bgrewriteaof()
            self.world.counts["rewrites"] += 1
        except ResponseError:
            pass  # one is running

    def _recover(self) -> None:
        """Resolve everything as the gateway's `recover` does, and use every index again."""
        world, server = self.world, self._server
        for client in self._clients:
            client.steps = None
        state = server.snapshot()
        for name in NAMES:
            world.now = f"recovery of {name}"
            claim: dict[str, str] = state.get(Index(name).claim_key, [{}])[0]
            if claim:
                world.counts["claims recovered"] += 1
                index = Index(name, incarnation=claim["collection"])
                call = (
                    index.abort(claim["token"])
                    if claim["kind"] == "create"
                    else index.commit("delete", claim["token"])
                )
                self._succeeds(call)
                if claim["kind"] == "delete":
                    world.deleted.add(claim["collection"])
            seen = server.run(Index(name).view())
            if seen[0] == 0:
                self._release_all(Index(name, incarnation=seen[2]))
            else:
                seen = self._create(name)
            self._use(Index(name, incarnation=seen[2]))
        left = [key for key in server.snapshot() if ":claim:" in key or ":writers:" in key]
        if left:
            world.fail(f"left after the recovery: {left}")

    def _release_all(self, index: Index) -> None:
        life = self.world.lives[index.incarnation]
        for token in self._server.snapshot().get(index.writers_key, [{}])[0]:
            # What its writer had sent may land until the recovery has waited for it.
            life.value += 1
            life.acknowledged = life.value
            self.world.counts["writers recovered"] += 1
            self._succeeds(index.release(token))

    def _create(self, name: str) -> Any:
        index = Index(name, incarnation=self.world.new_name("c"))
        self._succeeds(index.claim("create", "last"))
        self._succeeds(index.commit("create", "last"))
        return self._server.run(index.view())

    def _use(self, index: Index) -> None:
        """Nothing stale is served, a write works, and a new response is a hit."""
        world, server = self.world, self._server
        for number in range(FILLS):
            floor = world.floor(index.name)
            reply = server.run(index.lookup(index.fill(number)))
            if reply[0] == 1:
                world.check_response(reply[1], floor, "after the recovery")
        version = int(server.run(index.view())[4])
        self._succeeds(index.admit("last", 1, version))
        generation = self._succeeds(index.release("last"))[1]
        self._succeeds(index.publish(index.fill(), f"{index.incarnation}:0", generation))
        self._succeeds(index.lookup(index.fill()))
        world.counts["indices usable after the recovery"] += 1

    def _succeeds(self, call: Call) -> Any:
        reply = self._server.run(call)
        if reply[0] != 1:
            self.world.fail(f"{call.name} after the recovery: {reply}")
        return reply


def episode(subject: Subject, number: int, kills: int) -> World:
    """Run one episode on a data set of its own."""
    with subject.server() as server:
        made = Episode(server, f"{subject.seed} {subject.image} {ID} {number}", kills)
        try:
            made.run()
        except (RedisError, IndexError, KeyError, TypeError, ValueError) as error:
            # A reply that no script gives on a catalog that is whole.
            made.world.fail(f"{type(error).__name__}: {error}")
        return made.world


def kills_on(subject: Subject) -> int:
    """Give how often the server is killed in all episodes."""
    scale = subject.scale
    return scale.kills if subject.server_name == DEFAULT else scale.other_kills


def crashes(subject: Subject, found: Findings) -> None:
    """Run all episodes."""
    kills = all_kills = kills_on(subject)
    counts: Counter[str] = Counter()
    number = 0
    while kills > 0 and len(found.failures) < MOST_FAILURES:
        subject.tell(f"{all_kills - kills} of {all_kills} kills")
        world = episode(subject, number, min(kills, KILLS_AN_EPISODE))
        counts += world.counts
        if world.failures:
            again = told_of_episode(ID, subject, number, world.history)
            for failure in world.failures[:MOST_FAILURES]:
                found.expect(False, f"episode {number}, {failure}; {again}")
        kills -= KILLS_AN_EPISODE
        number += 1
    found.note(seed=subject.seed, episodes=number, **dict(sorted(counts.items())))
    found.control(
        counts["calls that a kill left unanswered"] > 0, "no kill met a call that was in flight"
    )
    found.control(counts["hits"] > 0, "nothing was served, so nothing could be stale")


CHECKS = (
    Check(
        ID,
        "Killed at random points: nothing acknowledged is lost, nothing stale served, every index "
        "usable after the recovery",
        BEYOND,
        crashes,
        cheap=False,
    ),
)
