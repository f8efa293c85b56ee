"""Clients of the catalog as the gateway is one, each a sequence of calls that can be interleaved.

A client gives one call at a time, or None for a pause, and is given the reply. When the server
was killed under a call, `Lost` is raised in the client after the restart: it repeats the call with
the same token, or it is given up, as a gateway that died.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any

from refill.proofs.calls import Call, Index, sweep
from refill.proofs.world import FILLS, HELD, MAYBE, NAMES, Claim, DeadWriter, World

Steps = Generator[Call | None, Any, None]
Step = Generator[Call | None, Any, Any]
GIVEN_UP = 0.25
# How many clients recover a dead writer when there is one.
RECOVERS = 0.17
BRIEF_MS, LONG_MS = 20, 600_000


class Lost(Exception):  # noqa: N818
    """The server was killed before it answered."""


def any_client(world: World, chance: random.Random) -> Steps:
    """One client that does one thing."""
    kinds = {"write": 25, "read": 62, "turn": 5, "sweep": 3}
    kind = chance.choices(list(kinds), list(kinds.values()))[0]
    # Drawn in any case: the draws behind it do not depend on who died.
    if chance.random() < RECOVERS and world.dead:
        kind = "recover"
    name = chance.choice(NAMES)
    world.counts[f"clients: {kind}"] += 1
    if kind == "write":
        return _write(world, chance, name)
    if kind == "read":
        return _read(world, chance, name)
    if kind == "turn":
        return _turn(world, chance, name)
    if kind == "recover":
        return _recover(world, chance, world.dead.pop(0))
    return _sweep(name)


def _surely(world: World, chance: random.Random, call: Call) -> Step:
    """Repeat a call until it is answered; None when the client is given up meanwhile."""
    while True:
        try:
            reply = yield call
        except Lost:
            if chance.random() < GIVEN_UP:
                world.counts["clients given up"] += 1
                return None
            world.counts["calls repeated by token"] += 1
            continue
        return reply


def _pause(chance: random.Random) -> Step:
    for _ in range(chance.randrange(3)):
        yield None


def _write(world: World, chance: random.Random, name: str) -> Steps:
    try:
        seen = yield Index(name).view()
    except Lost:
        return
    if seen[0] != 0:
        return
    incarnation, version = seen[2], int(seen[4])
    life, index = world.lives[incarnation], Index(name, incarnation=incarnation)
    token, count = world.new_name("w"), chance.randint(1, 5)
    life.tokens[token] = MAYBE
    reply = yield from _surely(world, chance, index.admit(token, count, version))
    if reply is None:
        world.dead.append(DeadWriter(name, incarnation, token, wrote=False))
        return
    if reply[0] != 1:
        # Refused at a repeat, it may still have been admitted the first time.
        world.dead.append(DeadWriter(name, incarnation, token, wrote=False))
        return
    life.tokens[token] = HELD
    world.give_numbers(incarnation, token, range(reply[1], reply[1] + count))
    yield from _pause(chance)
    life.value += 1
    mine = life.value
    yield from _pause(chance)
    if chance.random() < 0.2:
        reply = yield from _surely(world, chance, index.extend(token, f'"{token}"', version))
        if reply is None:
            world.dead.append(DeadWriter(name, incarnation, token, wrote=True))
            return
        if reply[0] == 1:
            life.mapping_version = max(life.mapping_version, reply[1])
    life.tokens[token] = MAYBE
    reply = yield from _surely(world, chance, index.release(token))
    if reply is None:
        world.dead.append(DeadWriter(name, incarnation, token, wrote=False))
        return
    if reply[0] == 1:
        life.generation = max(life.generation, reply[1])
        life.acknowledged = max(life.acknowledged, mine)
        world.counts["writes acknowledged"] += 1
    elif incarnation in world.standing[name] and len(world.standing[name]) == 1:
        world.fail(f"the release of {token} says {reply[1]}, {incarnation} stands")
    del life.tokens[token]


def _recover(world: World, chance: random.Random, dead: DeadWriter) -> Steps:
    """Release a dead writer, after what it had sent has landed."""
    life = world.lives[dead.incarnation]
    if dead.wrote:
        life.value += 1
    mine = life.value
    yield from _pause(chance)
    life.tokens[dead.token] = MAYBE
    index = Index(dead.name, incarnation=dead.incarnation)
    reply = None
    while reply is None:
        reply = yield from _surely(world, chance, index.release(dead.token))
    if reply[0] == 1:
        life.generation = max(life.generation, reply[1])
        life.acknowledged = max(life.acknowledged, mine)
        world.counts["writers recovered"] += 1
    life.tokens.pop(dead.token, None)


def _read(world: World, chance: random.Random, name: str) -> Steps:
    index = Index(name)
    fill = index.fill(chance.randrange(FILLS))
    floor = world.floor(name)
    try:
        reply = yield index.lookup(fill)
        if reply[0] == 1:
            world.counts["hits"] += 1
            world.check_response(reply[1], floor, "a hit")
            return
        if reply[0] == -1:
            if reply[1] == "epoch":
                world.fail("the catalog has another epoch")
            return
        world.counts[f"misses: {reply[1]}"] += 1
        incarnation, generation, writers = reply[2], int(reply[3]), reply[5]
        if writers:
            return
        yield from _pause(chance)
        body = f"{incarnation}:{world.lives[incarnation].value}"
        yield from _pause(chance)
        ttl_ms = chance.choice((BRIEF_MS, LONG_MS, LONG_MS))
        index = index.but(incarnation=incarnation)
        reply = yield index.publish(fill, body, generation, ttl_ms)
        world.counts["publications" if reply[0] == 1 else f"refused: {reply[1]}"] += 1
    except Lost:
        return


def _turn(world: World, chance: random.Random, name: str) -> Steps:
    """Create the index, or delete it."""
    try:
        seen = yield Index(name).view()
    except Lost:
        return
    if seen[0] == -1 and seen[1] != "missing":
        return
    kind = "create" if seen[0] == -1 else "delete"
    index = Index(name, incarnation=world.new_name("c") if kind == "create" else seen[2])
    token = world.new_name("k")
    claim = world.claims[name][token] = Claim(kind, index.incarnation)
    reply = yield from _surely(world, chance, index.claim(kind, token))
    if reply is None:
        return
    if reply[0] != 1:
        del world.claims[name][token]
        return
    claim.state, claim.incarnation = HELD, reply[1]
    index = index.but(incarnation=reply[1])
    yield from _pause(chance)
    claim.state = MAYBE
    if chance.random() < 0.2:
        reply = yield from _surely(world, chance, index.abort(token))
        if reply is not None:
            del world.claims[name][token]
        return
    world.turning(kind, name, index.incarnation)
    reply = yield from _surely(world, chance, index.commit(kind, token))
    if reply is None:
        return
    # A repeat is refused where another client has deleted meanwhile what was created.
    if reply[0] != 1 and not (kind == "create" and world.lives[index.incarnation].leaving):
        world.fail(f"the commit to {kind} {index.incarnation} says {reply[1]}")
    world.turned(kind, name, index.incarnation)
    del world.claims[name][token]


def _sweep(name: str) -> Steps:
    try:
        yield sweep([Index(name).fill(number) for number in range(FILLS)])
    except Lost:
        return
