"""How often the server syncs: for a fill, and for each durable step."""

from __future__ import annotations

from refill.proofs.calls import Index
from refill.proofs.findings import BEYOND, Check, Findings
from refill.proofs.strace import Strace
from refill.proofs.subject import Subject, create

TRACED_FILLS = 20


def sync_counts(subject: Subject, found: Findings) -> None:
    """Count fdatasync and fsync of each kind of call."""
    strace = Strace.find()
    with subject.server() as server:
        index = create(server)
        coming = Index("coming", incarnation="c2")
        steps = {
            "admission": index.admit("w"),
            "larger mapping": index.extend("w", '{"a": 1}'),
            "release": index.release("w"),
            "claim": coming.claim("create", "k"),
            "commit": coming.commit("create", "k"),
            "claim to delete": coming.claim("delete", "d"),
            "abort": coming.abort("d"),
            "epoch": index.but(epoch="e1").set_epoch("replace"),
        }
        with strace.syncs(server.pid, server.folder / "strace") as syncs:
            counts = {}
            for name, call in steps.items():
                before = syncs.count()
                server.run(call)
                counts[name] = syncs.count() - before
            before = syncs.count()
            for number in range(TRACED_FILLS):
                server.run(index.publish(index.fill(number), "x" * 1000, generation=1))
            fills = syncs.count() - before
            before = syncs.count()
            hits = sum(server.run(index.lookup(index.fill(n)))[0] for n in range(TRACED_FILLS))
            lookups = syncs.count() - before
    found.note(
        fills=TRACED_FILLS, syncs_of_fills=fills, syncs_a_fill=fills / TRACED_FILLS,
        hits=hits, syncs_of_hits=lookups, syncs_of_steps=counts, property_holds=fills == 0,
    )  # fmt: skip
    for name, count in counts.items():
        found.expect(count >= 1, f"{name}: {count} syncs")
    found.same("hits", hits, TRACED_FILLS)
    found.same("syncs of hits", lookups, 0)
    if subject.ephemeral:
        found.same("syncs of fills", fills, 0)
    else:
        found.expect(fills >= TRACED_FILLS, f"{TRACED_FILLS} durable fills made {fills} syncs")


CHECKS = (
    Check(
        "sync-counts",
        "A fill syncs nothing, and each durable step at least once",
        BEYOND,
        sync_counts,
        {"old": "at least one sync a fill: it is durable", "new": "0 syncs a fill"},
        needs="strace",
        cheap=False,
    ),
)
