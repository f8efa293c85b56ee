"""Every mutation of a script is caught by a named check of the proof.

A mutation is a fault that somebody could put into a script. It is caught when the check that is
named for it fails or is void on the mutated scripts; on the scripts as they are it passes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from proof_subject import sources, subject
from refill.proofs.calls import NAMES
from refill.proofs.findings import FAIL, PASS, Check, run_check
from refill.proofs.suite import CHECKS

BY_ID: dict[str, Check] = {check.id: check for check in CHECKS}
NONE = "server.set_repl(server.REPL_NONE)\n"
ALL = "server.set_repl(server.REPL_ALL)\n"
SET = "local outcome = server.pcall('SET', KEYS[5], entry, 'PXAT', key_expiry)\n"


@dataclass(frozen=True)
class Mutation:
    """A fault: `old` becomes `new` in a script, once; `check` must see it."""

    name: str
    script: str
    old: str
    new: str
    check: str

    def applied(self, source: str) -> str:
        assert source.count(self.old) >= 1, f"{self.name}: {self.old!r} is not in {self.script}"
        return source.replace(self.old, self.new, 1)


def without_propagation(name: str, script: str, write: str, check: str) -> Mutation:
    """A durable write that is not propagated."""
    return Mutation(name, script, write, f"{NONE}{write}{ALL}", check)


MUTATIONS = (
    # publish
    Mutation("the flag is not restored", "publish", ALL, "", "flag-restored"),
    Mutation(
        "the flag is restored after a success only",
        "publish",
        f"{ALL}if outcome.err then return {{0, 'error', outcome.err}} end\n",
        f"if outcome.err then return {{0, 'error', outcome.err}} end\n{ALL}",
        "flag-restored",
    ),
    Mutation("an error of the SET ends the script", "publish", "server.pcall('SET'",
             "server.call('SET'", "after-publication-error"),
    Mutation("the fill is propagated", "publish", NONE, "", "publication-hit"),
    Mutation("the fill is propagated: a miss is expected", "publish", NONE, "",
             "fill-during-rewrite"),
    Mutation("the fill has no expiry", "publish", ", 'PXAT', key_expiry)", ")", "rewrite-restores"),
    Mutation("the fill's expiry is relative", "publish", "'PXAT', key_expiry", "'PX', key_expiry",
             "rewrite-restores"),
    Mutation("the key does not outlive its entry", "publish", "expiry + tonumber(ARGV[6])",
             "expiry", "rewrite-restores"),
    Mutation(
        "EXPIRE in the place of PXAT",
        "publish",
        f"{SET}{ALL}",
        f"local outcome = server.pcall('SET', KEYS[5], entry)\n{ALL}"
        "server.call('PEXPIREAT', KEYS[5], key_expiry)\n",
        "publication-hit",
    ),
    Mutation(
        "published before it is validated",
        "publish",
        "if server.call('GET', KEYS[1]) ~= ARGV[1]",
        "server.set_repl(server.REPL_NONE)\n"
        "server.pcall('SET', KEYS[5], ARGV[7], 'PX', 60000)\n"
        "server.set_repl(server.REPL_ALL)\n"
        "if server.call('GET', KEYS[1]) ~= ARGV[1]",
        "publication-refuses",
    ),
    Mutation("no epoch in the entry", "publish", "table.concat({ARGV[1], ARGV[2]",
             "table.concat({'-', ARGV[2]", "rewrite-restores"),
    Mutation("no generation in the entry", "publish", "ARGV[2], ARGV[3], ARGV[4]",
             "ARGV[2], '0', ARGV[4]", "old-generation"),
    Mutation("a counter of publications", "publish", ALL,
             f"{ALL}server.call('INCR', 'proof:published')\n", "fill-life"),
    # lookup
    Mutation("no epoch in the comparison", "lookup",
             "local prefix = ARGV[1] .. ' ' .. index[1]",
             "local prefix = string.match(entry, '^(%S+) ') .. ' ' .. index[1]", "lost-data-set"),
    Mutation("no incarnation in the comparison", "lookup",
             "ARGV[1] .. ' ' .. index[1] .. ' '",
             "ARGV[1] .. ' ' .. string.match(entry, '^%S+ (%S+) ') .. ' '", "lookup-refuses"),
    Mutation("no generation in the comparison", "lookup",
             "index[1] .. ' ' .. index[2]",
             "index[1] .. ' ' .. string.match(entry, '^%S+ %S+ (%d+) ')", "old-generation"),
    *(
        Mutation(f"no generation in the comparison: {check}", "lookup",
                 "index[1] .. ' ' .. index[2]",
                 "index[1] .. ' ' .. string.match(entry, '^%S+ %S+ (%d+) ')", check)
        for check in ("old-values", "stale-after-rewrite", "promoted-replica")
    ),
    Mutation("no build in the comparison", "lookup",
             "index[2] .. ' ' .. ARGV[2] .. ' '",
             "index[2] .. ' ' .. string.match(entry, '^%S+ %S+ %d+ (%S+) ') .. ' '",
             "lookup-refuses"),
    Mutation("a hit extends the fill's life", "lookup", "return {1, entry}",
             "server.call('PEXPIRE', KEYS[5], 600000)\nreturn {1, entry}", "fill-life"),
    Mutation("a hit deletes what has expired", "lookup",
             "then return miss('expired') end",
             "then server.call('DEL', KEYS[5]) return miss('expired') end", "lookup-refuses"),
    # sweep
    Mutation("the sweeper propagates", "sweep", NONE, "", "fill-life"),
    Mutation("the sweeper does not restore the flag", "sweep", ALL, "", "flag-restored"),
    Mutation("the sweeper takes what is alive", "sweep", "expiry <= time", "true",
             "sweeper-refuses"),
    Mutation("the sweeper stops without memory", "sweep", "#!lua flags=allow-oom", "#!lua",
             "out-of-memory"),
    # writers
    without_propagation("an admission is not durable", "admit",
                        "server.call('HSET', KEYS[4], ARGV[4],\n"
                        "  string.format('%.0f %s %s', first, now[1], ARGV[6]))\n",
                        "claims-and-tokens"),
    without_propagation(
        "sequence numbers are not durable", "admit",
        "local first = server.call('HINCRBY', KEYS[2], 'seq', ARGV[5]) - tonumber(ARGV[5])\n",
        "claims-and-tokens"),
    Mutation("a repeat of an admission takes numbers again", "admit",
             "if before then return {1, tonumber(string.match(before, '^(%d+) '))} end\n", "",
             "claims-and-tokens"),
    Mutation("a release leaves the generation", "release",
             "server.call('HINCRBY', KEYS[2], 'generation', 1)",
             "tonumber(server.call('HGET', KEYS[2], 'generation'))", "old-generation"),
    Mutation("a release leaves the generation: as-built", "release",
             "server.call('HINCRBY', KEYS[2], 'generation', 1)",
             "tonumber(server.call('HGET', KEYS[2], 'generation'))", "as-built"),
    Mutation("a release leaves the token", "release",
             "server.call('HDEL', KEYS[3], ARGV[3])\n", "", "coordination-refuses"),
    without_propagation("a removed token comes back", "release",
                        "server.call('HDEL', KEYS[3], ARGV[3])\n", "commits-and-releases"),
    Mutation("a generation is not durable", "release",
             "return {1, server.call('HINCRBY', KEYS[2], 'generation', 1)}",
             f"{NONE}return {{1, server.call('HINCRBY', KEYS[2], 'generation', 1)}}",
             "commits-and-releases"),
    Mutation("a release fails without memory", "release", "#!lua flags=allow-oom", "#!lua",
             "out-of-memory"),
    without_propagation("a larger mapping is not durable", "extend",
                        "server.call('HSET', KEYS[2], 'mapping', ARGV[5], 'mapping_version', "
                        "next_version)\n", "commits-and-releases"),
    # claims
    without_propagation("a claim is not durable", "claim",
                        "server.call('HSET', KEYS[3], 'token', ARGV[3], 'kind', ARGV[2], "
                        "'collection', collection,\n  'instance', ARGV[5], 'at', now[1])\n",
                        "claims-and-tokens"),
    Mutation("anybody's claim is taken over", "claim",
             "  return {0, 'claimed', claim[3] .. ' by ' .. claim[4]}\n", "",
             "claims-and-tokens"),
    without_propagation("a commit leaves its claim in the log", "commit",
                        "server.call('DEL', KEYS[3])\n", "commits-and-releases"),
    without_propagation("a deleted index comes back", "commit",
                        "  server.call('DEL', KEYS[2], KEYS[5])\n", "commits-and-releases"),
    without_propagation("a created index is not durable", "commit",
                        "  server.call('HSET', KEYS[2], 'incarnation', ARGV[4], 'generation', 0, "
                        "'mapping_version', 1,\n    'mapping', ARGV[6], 'settings', ARGV[7], "
                        "'created', now[1], 'seq', 0)\n", "commits-and-releases"),
    Mutation("a deleted index leaves its writers", "commit",
             "server.call('DEL', KEYS[2], KEYS[5])", "server.call('DEL', KEYS[2])",
             "coordination-refuses"),
    Mutation("a commit does not look at the claim", "commit",
             "if server.call('HGET', KEYS[3], 'token') ~= ARGV[2] then", "if false then",
             "coordination-refuses"),
    Mutation("a repeated commit of a create is refused", "commit",
             "  if ARGV[3] == 'create' and standing == ARGV[4] then return {1, ''} end\n", "",
             "coordination-refuses"),
    Mutation("a repeated commit of a delete is refused", "commit",
             "  if ARGV[3] == 'delete' and standing ~= ARGV[4] then return {1, ''} end\n", "",
             "coordination-refuses"),
    *(
        Mutation(f"{what} fails without memory", script, "#!lua flags=allow-oom", "#!lua",
                 "out-of-memory")
        for what, script in (
            ("an admission", "admit"), ("a claim", "claim"), ("a larger mapping", "extend"),
            ("an epoch", "epoch"),
        )
    ),
    Mutation("a commit fails without memory", "commit", "#!lua flags=allow-oom", "#!lua",
             "out-of-memory"),
    Mutation("anybody's claim is given back", "abort",
             "if server.call('HGET', KEYS[2], 'token') == ARGV[2] then server.call('DEL', KEYS[2]) "
             "end", "server.call('DEL', KEYS[2])", "coordination-refuses"),
    Mutation("a claim that was given back comes back", "abort", "server.call('DEL', KEYS[2])",
             "server.set_repl(server.REPL_NONE) server.call('DEL', KEYS[2]) "
             "server.set_repl(server.REPL_ALL)", "commits-and-releases"),
    Mutation("an abort fails without memory", "abort", "#!lua flags=allow-oom", "#!lua",
             "out-of-memory"),
    # epoch
    without_propagation("an epoch is not durable", "epoch",
                        "  server.call('SET', KEYS[1], ARGV[1])\n", "commits-and-releases"),
    Mutation("an epoch is replaced by every gateway", "epoch",
             "ARGV[2] == 'create' and not standing", "ARGV[2] == 'create'",
             "coordination-refuses"),
)  # fmt: skip

# A line that refuses: `if ... then return ... end`, also one level in.
REFUSAL = re.compile(r"^ *if .+ then return .+ end\n", re.MULTILINE)
REFUSES = {
    "publish": "publication-refuses",
    "lookup": "lookup-refuses",
    **dict.fromkeys(
        ("abort", "admit", "claim", "commit", "extend", "release", "view"), "coordination-refuses"
    ),
}
# What another check sees, as the script's own checks cannot.
ELSEWHERE = {
    ("publish", "if outcome.err"): "after-publication-error",
    ("sweep", "if #over == 0"): "sweeper-refuses",
}
# Without these lines a script does the same: what they skip has no effect.
SAME = {("sweep", "if #over == 0")}


def refusals() -> list[Mutation]:
    """Each line that refuses, left out alone."""
    found = []
    for script in NAMES:
        source = sources("new")[script].decode()
        for line in REFUSAL.findall(source):
            start = line.strip()
            key = next((k for k in ELSEWHERE if k[0] == script and start.startswith(k[1])), None)
            if key in SAME:
                continue
            check = ELSEWHERE[key] if key else REFUSES[script]
            found.append(Mutation(f"{script} without: {start}", script, line, "", check))
    return found


def outcome(mutation: Mutation | None, check: str, folder: Path, image: str = "new") -> str:
    made = subject(image, folder)
    if mutation is not None:
        source = mutation.applied(made.sources[mutation.script].decode()).encode()
        made = replace(made, sources={**made.sources, mutation.script: source})
    return str(run_check(BY_ID[check], made)["outcome"])


USED = sorted({m.check for m in (*MUTATIONS, *refusals())})


@pytest.mark.parametrize("check", USED)
def test_the_scripts_as_they_are_pass(check: str, tmp_path: Path) -> None:
    assert outcome(None, check, tmp_path) == PASS


@pytest.mark.parametrize(
    "mutation", [*MUTATIONS, *refusals()], ids=lambda m: f"{m.script}: {m.name}"
)
def test_a_mutation_is_caught(mutation: Mutation, tmp_path: Path) -> None:
    assert outcome(mutation, mutation.check, tmp_path) == FAIL


def test_every_script_is_mutated_and_every_refusal_is_known() -> None:
    assert {m.script for m in (*MUTATIONS, *refusals())} == set(NAMES)
    # So many lines refuse in the scripts as they are: the pattern must find them.
    assert len(refusals()) >= 30


def test_in_the_old_image_a_publication_that_is_not_propagated_is_seen(tmp_path: Path) -> None:
    mutation = Mutation("not propagated", "publish", SET, f"{NONE}{SET}{ALL}", "publication-hit")
    assert outcome(mutation, "publication-hit", tmp_path, "old") == FAIL
