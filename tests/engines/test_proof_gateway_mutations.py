"""Every mutation of the gateway's Python is caught by a named check of the proof.

The scripts of these gateways lie in their archives as they must: what is wrong is how the gateway
loads, calls or surrounds them. Each archive is the image's with one fault put in; nothing here is
pinned or built by a record, as such a gateway would be refused before it was tried.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from proof_subject import build, subject
from refill.proofs import crash_gateway
from refill.proofs.calls import read_sources
from refill.proofs.engines import Archives
from refill.proofs.findings import FAIL, PASS, Check, run_check
from refill.proofs.subject import Subject
from refill.proofs.suite import CHECKS

BY_ID: dict[str, Check] = {check.id: check for check in CHECKS}
SCRIPTS, HITS = "gateway-scripts", "gateway-publication-hit"
LATE, HELD = "gateway-late-fill", "gateway-held-write"
CRASH = crash_gateway.ID
GRACE, CLAIMS = "gateway-recovery-grace", "gateway-claims"
FLIPPED, WITHOUT = "flipped-byte", "gateway-without-data"

# Where a script's text is at hand, a publication is sent, a write is made.
SOURCE = "        self.source = file.read_bytes()\n"
PUBLISH = """            reply = await self._scripts.run(
                self.valkey,
                "publish","""
# Where it looks whether writes are durable; on a connection that is new.
ROLE = '    role = await ask("ROLE")\n'
PREPARE = "        await check_durability(valkey.ask, self._settings.durable)\n"
# Where a gateway looks again whether writes are durable.
WATCH = """            await check_durability(valkey.call, self._settings.durable)
        except"""
# How a recovery asks Qdrant.
BARRIER = "            await self._qdrant.barrier(incarnation.decode())\n"
REMOVAL = "            await self._qdrant.delete_collection(collection)\n"
APPLY = "            await self._apply(index, view, token, plan, first)\n"
RELEASE = """        await self._release(index, view.incarnation, token)
        self.writes += plan.writing
"""


@dataclass(frozen=True)
class Mutation:
    """A fault: in a file of the gateway each old text becomes its new one; `check` must see it."""

    name: str
    file: str
    changes: Sequence[tuple[str, str]]
    checks: Sequence[str]
    image: str = "new"

    def put_in(self, tree: Path) -> None:
        path = tree / "gateway" / self.file
        text = path.read_text()
        for old, new in self.changes:
            assert text.count(old) == 1, f"{self.name}: {old!r} stands {text.count(old)} times"
            text = text.replace(old, new)
        path.write_text(text)


def one(name: str, file: str, old: str, new: str, *checks: str, image: str = "new") -> Mutation:
    return Mutation(name, file, [(old, new)], checks, image)


MUTATIONS = (
    one(
        "scripts are loaded that propagate everything", "scripts.py", SOURCE,
        f'{SOURCE}        self.source = self.source.replace(b"REPL_NONE", b"REPL_ALL")\n',
        SCRIPTS, HITS,
    ),
    one(
        "the old image loads a script that propagates nothing", "scripts.py", SOURCE,
        f"{SOURCE}        self.source = self.source.replace("
        'b"local outcome = server.pcall", b"server.set_repl(server.REPL_NONE)\\nlocal outcome = '
        'server.pcall")\n',
        SCRIPTS, HITS, image="old",
    ),
    one(
        "a publication looks at nothing", "scripts.py", SOURCE,
        f'{SOURCE}        if name == "publish":\n'
        '            self.source = b"\\n".join(line for line in self.source.split(b"\\n") if not '
        'line.startswith(b"if ") or b"outcome" in line)\n',
        SCRIPTS,
    ),
    one(
        "each response is written by a plain command, too", "catalog.py", PUBLISH,
        '            await self.valkey.call("SET", f"{fill}:copy", body)\n' + PUBLISH,
        SCRIPTS, HITS,
    ),
    one(
        "each response is written elsewhere, too", "catalog.py", PUBLISH,
        '            await self.valkey.call("SET", f"copies:{fill}", body)\n' + PUBLISH,
        HITS,
    ),
    one(
        "responses are told to subscribers", "catalog.py", PUBLISH,
        '            await self.valkey.call("PUBLISH", fill, body)\n' + PUBLISH,
        SCRIPTS,
    ),
    one(
        "responses are kept by an own script", "catalog.py", PUBLISH,
        '            own = "return server.call(\'SET\', KEYS[1], ARGV[1])"\n'
        '            await self.valkey.call("EVAL", own, 1, fill + "x", body)\n' + PUBLISH,
        HITS,
    ),
    one(
        "a hit extends the life of its response", "catalog.py",
        "                callback(self._entry(index, name, reply[1]))\n",
        "                callback(self._entry(index, name, reply[1]))\n"
        '                asyncio.ensure_future(self.command("PEXPIRE", fill, 900000))\n',
        HITS,
    ),
    one(
        "responses live longer than was told", "catalog.py",
        "                    self._settings.ttl_ms,\n",
        "                    self._settings.ttl_ms * 100,\n",
        HITS,
    ),
    one(
        "the sweeper removes by a plain command", "catalog.py",
        'await self.run("sweep", fills, (self.fill_prefix,))',
        'await self.command("UNLINK", *fills)',
        SCRIPTS,
    ),
    one(
        "an answer is published under the state of now", "catalog.py", PUBLISH,
        "            view = await self.view(index)\n"
        '            head = f"{epoch} {view.incarnation} {view.generation} {build} ".encode()\n'
        + PUBLISH,
        LATE,
    ),
    Mutation(
        "a publication looks at neither generation nor writers", "scripts.py",
        [(
            SOURCE,
            f'{SOURCE}        if name == "publish":\n'
            '            for guard in (b"index[2] ~= ARGV[3]", b"EXISTS\', KEYS[4]) == 1"):\n'
            '                whole = guard if guard[:1] == b"i" else b"server.call(\'" + guard\n'
            '                self.source = self.source.replace(whole, b"false")\n',
        )],
        (SCRIPTS, LATE),
    ),
    one(
        "a gateway keeps what it has served", "routes.py",
        "        def looked(found: Hit | Miss | Exception) -> None:\n"
        "            if isinstance(found, Hit):\n",
        '        kept = self.__dict__.setdefault("kept", {})\n'
        "        if fill in kept:\n"
        "            cache.counters.hits += 1\n"
        "            respond(200, kept[fill])\n"
        "            return\n\n"
        "        def looked(found: Hit | Miss | Exception) -> None:\n"
        "            if isinstance(found, Hit):\n"
        "                kept[fill] = found.body\n",
        LATE, HELD,
    ),
    Mutation(
        "a writer is released before Qdrant has its write", "documents.py",
        [
            (APPLY, f"            await self._release(index, view.incarnation, token)\n{APPLY}"),
            (RELEASE, "        self.writes += plan.writing\n"),
        ],
        (HELD,),
    ),
    Mutation(
        "a write is acknowledged before Qdrant has it", "documents.py",
        [(APPLY, APPLY.replace("await ", "asyncio.ensure_future(").replace("first)", "first))"))],
        (HELD,),
    ),
    one(
        "a write does not wait for one of a dead gateway", "documents.py",
        "                    if view.writers:\n                        await self._outwait",
        "                    if False:\n                        await self._outwait",
        HELD,
    ),
    one(
        "a recovery releases writers without their grace", "recover.py",
        f"{BARRIER}            await asyncio.sleep(self._options.grace_s)\n{BARRIER}", "",
        GRACE,
    ),
    one(
        "a recovery waits no time for a write", "recover.py",
        f"            await asyncio.sleep(self._options.grace_s)\n{BARRIER}", BARRIER,
        GRACE,
    ),
    one(
        "a recovery waits no time for a create", "recover.py",
        f"            await asyncio.sleep(self._options.grace_s)\n{REMOVAL}", REMOVAL,
        GRACE,
    ),
    one(
        "a recovery gives a claim back without looking again", "recover.py",
        f"            await asyncio.sleep(self._options.grace_s)\n{REMOVAL}",
        "            await asyncio.sleep(self._options.grace_s)\n",
        GRACE,
    ),
    one(
        "a collection is removed before its index is claimed", "indices.py",
        '            debt = ClaimDebt(index, new_token(), "delete", "", Step.ABORT)\n',
        '            debt = ClaimDebt(index, new_token(), "delete", "", Step.ABORT)\n'
        "            view = await self._catalog.view(index)\n"
        "            await self._qdrant.delete_collection(view.incarnation)\n",
        CLAIMS,
    ),
    one(
        "an index is in the catalog before it is in Qdrant", "indices.py",
        "        debt.step = Step.UNDO\n        try:\n",
        "        debt.step = Step.UNDO\n"
        "        await self._catalog.commit(debt.index, debt.kind, debt.token, debt.collection, "
        "debt.mapping, debt.settings)\n        try:\n",
        CLAIMS,
    ),
    one(
        "a response's checksum is not looked at", "catalog.py",
        "        if entry[start : start + _CHECKSUM_BYTES] != _checksum(fill, head, body):\n",
        "        if False:\n",
        FLIPPED,
    ),
    Mutation(
        "a gateway begins anew where its catalog is gone", "opening.py",
        [
            ("if self._began_with and epoch != self._began_with:", "if False:"),
            ("        if orphans:\n", "        if False:\n"),
        ],
        (WITHOUT,),
    ),
    Mutation(
        "the log's sync is switched off while it serves", "opening.py",
        [(
            WATCH,
            '            await valkey.call("CONFIG", "SET", "appendfsync", "no")\n        except',
        )],
        (SCRIPTS,),
    ),
    Mutation(
        "the log's sync is switched off wherever a gateway looks", "durability.py",
        [
            ('"appendfsync": "always"', '"appendfsync": "no"'),
            (ROLE, '    await ask("CONFIG", "SET", "appendfsync", "no")\n' + ROLE),
        ],
        (SCRIPTS, HITS, LATE, HELD, CRASH),
    ),
    one(
        "each connection lets a rewrite go without syncs", "opening.py", PREPARE,
        PREPARE + '        await valkey.ask("CONFIG", "SET", "no-appendfsync-on-rewrite", "yes")\n',
        LATE,
    ),
    Mutation(
        "a writer is admitted behind its write", "documents.py",
        [
            ("            first = await self._catalog.admit(index, view, token, plan.writing)\n",
             "            first = 0\n"),
            (APPLY, f"{APPLY}            await self._catalog.admit(index, view, token, 1)\n"),
        ],
        (HELD,),
    ),
)  # fmt: skip


def faulty(mutation: Mutation, folder: Path) -> Subject:
    tree = folder / "tree"
    shutil.unpack_archive(build(f"gateway-{mutation.image}", folder), tree, "zip")
    mutation.put_in(tree)
    archive = Path(shutil.make_archive(str(folder / "faulty"), "zip", tree))
    made = subject(mutation.image, folder)
    # What lies in the archive is what the proof compares with: here as it must be.
    assert read_sources(archive) == made.sources
    return replace(made, parts=Archives(archive, build("qdrant-edge", folder)))


def outcome(made: Subject, check: str) -> tuple[str, str]:
    entry = run_check(BY_ID[check], made)
    return str(entry["outcome"]), str(entry["why"])


@pytest.mark.parametrize("check", [SCRIPTS, HITS, LATE, HELD, GRACE, CLAIMS, FLIPPED, WITHOUT])
def test_the_gateway_as_it_is_passes(check: str, tmp_path: Path) -> None:
    assert outcome(subject("new", tmp_path), check) == (PASS, "")


@pytest.mark.parametrize(
    ("mutation", "check"),
    [pytest.param(m, check, id=f"{m.name}: {check}") for m in MUTATIONS for check in m.checks],
)
def test_a_mutation_is_caught(mutation: Mutation, check: str, tmp_path: Path) -> None:
    found, why = outcome(faulty(mutation, tmp_path), check)
    assert found == FAIL, why
    # The fault that was put in, not a gateway that does not start.
    assert "Error" not in why


def test_kills_see_a_writer_that_is_released_before_its_write(tmp_path: Path) -> None:
    """The history of kills sees it, too: another gateway reads, and writes take a little longer."""
    mutation = next(m for m in MUTATIONS if m.name.startswith("a writer is released before"))
    made = faulty(mutation, tmp_path)
    for number in range(3):
        ledger, _ = crash_gateway.episode(made, number, 4)
        if any("acknowledged or read before" in failure for failure in ledger.failures):
            return
    pytest.fail("12 kills saw nothing")


def test_the_first_kill_of_an_episode_meets_a_write(tmp_path: Path) -> None:
    ledger, _ = crash_gateway.episode(subject("old", tmp_path), 7, 1)
    assert ledger.failures == []
    assert ledger.counts["gateway kills with a write in the gate"] == 1
    assert ledger.counts["gateway kills that left a writer"] == 1
    # And behind its recovery an index is made or deleted to the end.
    assert ledger.counts["creates and deletes acknowledged"] >= 1
