"""Published claims on the gateway rounds and the crash proof, held against their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from refill.config.claims import figure_of, growth_holds, published_log_growth
from refill.report import text
from refill.report.lookup import NOT_MEASURED
from refill.report.rounds import (
    IMAGES,
    CellKey,
    Expected,
    Record,
    asked_for,
    decided_cell,
    status_of,
    trials_by_round,
)
from refill.report.rounds_verdicts import blocks_text, blocks_wanted
from refill.stats.ratios import EQUIVALENT, FASTER, PER_BLOCK, SLOWER, Comparison, compare
from refill.stats.resampling import arm_median
from refill.stats.verdict import CONTRADICTED, REPRODUCED, UNDECIDABLE

PROOF_SERVER = "valkey-8.1"
"""The server on which a check of the proof counts; others stand in the report."""
PROOF_IMAGE = "new"

# What each verdict on a ratio says of a claim; undecidable stays what it is.
_SAYS = {
    "below": {FASTER: REPRODUCED, SLOWER: CONTRADICTED, EQUIVALENT: CONTRADICTED},
    "above": {SLOWER: REPRODUCED, FASTER: CONTRADICTED, EQUIVALENT: CONTRADICTED},
    "unchanged": {EQUIVALENT: REPRODUCED, FASTER: CONTRADICTED, SLOWER: CONTRADICTED},
}


def gateway_rows(
    experiment: Mapping[str, Any],
    records: Sequence[Record],
    expected: Expected,
    proof: Mapping[str, Any] | None,
) -> list[dict[str, Any]]:
    """Return one row a claim; keys are a part of `refill.report.claims.CLAIM_COLUMNS`.

    Args:
        experiment: the `gateway` experiment of config/claims.yaml.
        records: the rounds' records.
        expected: what the rounds were to measure.
        proof: the proof's record (refill.proof/1), None without one.
    """
    decide = {
        "new_by_old": _new_by_old,
        "gateway_by_engine": _gateway_by_engine,
        "log_growth": _log_growth,
        "wrong_responses": _wrong_responses,
    }
    rows = []
    for claim in experiment["claims"]:
        row: dict[str, Any] = {
            "experiment": "gateway",
            "claim": claim["id"],
            "text": claim["text"],
            "note": claim.get("note", ""),
        }
        if claim["statistic"] == "proof":
            row |= _proof(claim, experiment, proof)
        else:
            row |= _measured_on(records)
            row |= decide[claim["statistic"]](claim, experiment, records, expected)
        rows.append(row)
    return rows


def _measured_on(records: Sequence[Record]) -> dict[str, Any]:
    if not records:
        return {"scale": NOT_MEASURED, "engine": NOT_MEASURED}
    scales = {f"{r['scale']}: {r['corpus']['documents']:,} {r['corpus']['name']}" for r in records}
    engines = {_engines(r) for r in records if r["engines"]}
    return {"scale": "; ".join(sorted(scales)), "engine": "; ".join(sorted(engines))}


def _engines(record: Record) -> str:
    qdrant, valkey = record["engines"].get("qdrant", {}), record["engines"].get("valkey", {})
    title = str(qdrant.get("title") or f"qdrant {qdrant.get('version')}")
    if qdrant.get("embedded") and "embedded" not in title:
        title = f"{title}, embedded"
    return f"gateway over {title} and Valkey {valkey.get('version')}"


def _label(records: Sequence[Record]) -> str:
    """Name the embedded engine in the cell that holds a figure of it."""
    embedded = any(r["engines"].get("qdrant", {}).get("embedded") for r in records)
    return " (embedded engine)" if embedded else ""


def _key(cell: Mapping[str, Any], **changed: Any) -> CellKey:
    key = CellKey(
        cell["profile"], cell["cell"], cell["operation"], "", cell["engine"], cell["clients"]
    )
    return replace(key, **changed)


def _new_by_old(
    claim: Mapping[str, Any],
    experiment: Mapping[str, Any],
    records: Sequence[Record],
    expected: Expected,
) -> dict[str, Any]:
    key, quantile = _key(claim["cell"]), claim["quantile"]
    pair = (figure_of(experiment, claim["cell"]) or {})[quantile]
    row = {
        "compared": f"{quantile} of {_named(claim['cell'])}: new by old",
        **_published(pair["new"], pair["old"], ("new", "old")),
    }
    status = status_of(key, records, expected)
    if status != "completed":
        return row | _not_measured(status)
    found, medians = decided_cell(key, records, expected, quantile)
    mine = asked_for(records, key.profile, expected)
    old, new = (trials_by_round(key, mine, image, quantile) for image in IMAGES)
    ratio = _wanted(claim, pair["new"] / pair["old"])
    wanted = blocks_wanted(found, old, new, ratio, expected.margin)
    sides = _ratio(claim, found, medians["new"], medians["old"], ("new", "old"), records)
    return row | _with_blocks(sides, wanted, len(old))


def _gateway_by_engine(
    claim: Mapping[str, Any],
    experiment: Mapping[str, Any],
    records: Sequence[Record],
    expected: Expected,
) -> dict[str, Any]:
    image, quantile, other = claim["image"], claim["quantile"], claim["cell"]["engine"]
    native = _key(claim["cell"])
    ours = replace(native, engine="gateway")
    known = [figure_of(experiment, {**claim["cell"], "engine": e}) for e in ("gateway", other)]
    figures = [(figure or {})[quantile][image] for figure in known]
    names = (f"gateway ({image})", other)
    row = {
        "compared": f"{quantile} of {_named(claim['cell'])}: gateway ({image}) by {other}",
        **_published(figures[0], figures[1], names),
    }
    for key in (native, ours):
        if (status := status_of(key, records, expected)) != "completed":
            return row | _not_measured(status)
    mine = asked_for(records, native.profile, expected)
    trials = [trials_by_round(key, mine, image, quantile) for key in (ours, native)]
    # Both are of the same rounds, so a drift between rounds is in both alike.
    found = compare(trials[1], trials[0], expected.margin, in_blocks=False)
    medians = [arm_median(arm) for arm in trials]
    ratio = _wanted(claim, figures[0] / figures[1])
    wanted = blocks_wanted(found, trials[1], trials[0], ratio, expected.margin, in_blocks=False)
    sides = _ratio(claim, found, medians[0], medians[1], names, records)
    return row | _with_blocks(sides, wanted, len(trials[0]))


def _wanted(claim: Mapping[str, Any], published: float) -> float:
    """Return the ratio that decides a claim: what was published, or no difference at all."""
    return 1.0 if claim["direction"] == "unchanged" else published


def _with_blocks(row: dict[str, Any], blocks: int | None, rounds: int) -> dict[str, Any]:
    """Add how many blocks would decide an undecidable claim of which there are `rounds` an arm."""
    if blocks is None:
        return row
    if blocks * PER_BLOCK <= rounds:
        what = "had it been as published, rounds like these would mostly have shown it"
    else:
        what = f"with this noise {blocks_text(blocks)} (rounds.blocks) would decide it"
    return row | {"why": f"{row['why']}; {what}"}


def _named(cell: Mapping[str, Any]) -> str:
    clients = "1 client" if cell["clients"] == 1 else f"{cell['clients']} clients"
    return f"{cell['profile']}, {cell['operation']}, {cell['engine']}, {clients}"


def _published(left: float, right: float, names: tuple[str, str]) -> dict[str, Any]:
    shown = f"{names[0]} {text.printed(left)} against {names[1]} {text.printed(right)} ms"
    return {
        "published": f"{shown}, ratio {left / right:.2f}",
        "published_left": left,
        "published_right": right,
    }


def _ratio(
    claim: Mapping[str, Any],
    found: Comparison,
    left: float,
    right: float,
    names: tuple[str, str],
    records: Sequence[Record],
) -> dict[str, Any]:
    span = found.interval
    shown = text.interval(found.ratio, span)
    figures = f"{names[0]} {text.number(left)} against {names[1]} {text.number(right)} ms"
    verdict = _SAYS[claim["direction"]].get(found.verdict, UNDECIDABLE)
    return {
        "measured": f"{figures}, ratio {shown}{_label(records)}",
        "measured_left": f"{left:.6g}",
        "measured_right": f"{right:.6g}",
        "ratio": found.ratio,
        "ratio_low": span.low if span else None,
        "ratio_high": span.high if span else None,
        "interval_level": span.level if span else None,
        "verdict": verdict,
        "why": found.why if verdict == UNDECIDABLE else f"{found.verdict}: {found.why}",
    }


def _not_measured(status: str) -> dict[str, Any]:
    why = status.removeprefix(f"{NOT_MEASURED}: ")
    return {"measured": NOT_MEASURED, "verdict": NOT_MEASURED, "why": why}


def _log_growth(
    claim: Mapping[str, Any],
    experiment: Mapping[str, Any],
    records: Sequence[Record],
    expected: Expected,
) -> dict[str, Any]:
    """Counters of bytes need no interval: what every round shows is so."""
    sides = [claim[name] for name in ("left", "right") if name in claim]
    known = [published_log_growth(experiment, s["profile"], s["cell"])[s["image"]] for s in sides]
    names = [f"{s['image']}, {s['cell']}, {s['profile']}" for s in sides]
    row = {
        "compared": f"log growth in bytes a round: {' against '.join(names)}",
        "published": f"{' against '.join(_bytes(values) for values in known)} bytes",
    }
    grown, missing = [], []
    for side in sides:
        values, absent = _growth(side, records, expected)
        grown.append(values)
        missing += absent
    if missing:
        return row | _not_measured("; ".join(dict.fromkeys(missing)))
    shown = " against ".join(_bytes(values) for values in grown)
    direction = claim["direction"]
    holds, opposite = growth_holds(direction, grown)
    verdict = REPRODUCED if holds else CONTRADICTED if opposite else UNDECIDABLE
    rounds = f"{sum(map(len, grown))} rounds"
    why = {
        REPRODUCED: f"so in all of {rounds}",
        CONTRADICTED: f"not so in {rounds}",
        UNDECIDABLE: f"the {rounds} do not agree",
    }[verdict]
    numbers = [";".join(str(v) for v in values) for values in grown]
    return row | {
        "measured": f"{shown} bytes{_label(records)}",
        "measured_left": numbers[0],
        "measured_right": numbers[1] if len(numbers) > 1 else None,
        "verdict": verdict,
        "why": why,
    }


def _bytes(values: Sequence[int]) -> str:
    return ", ".join(f"{value:,}" for value in values)


def _growth(
    side: Mapping[str, Any], records: Sequence[Record], expected: Expected
) -> tuple[list[int], list[str]]:
    """Return the growth in each round of one side, and why it is not known in others."""
    mine = [r for r in asked_for(records, side["profile"], expected) if r["image"] == side["image"]]
    there = {int(r["repeat"]) for r in mine}
    missing = [
        f"no record of {side['profile']}/{side['image']}-{n}"
        for n in expected.numbers
        if n not in there
    ]
    if not missing and not mine:
        missing = ["no round was to be measured"]
    values = []
    for record in sorted(mine, key=lambda r: int(r["repeat"])):
        block = next((p for p in record["profiles"] if p["name"] == side["cell"]), None)
        if record["outcome"] == "failed" or block is None or not block["valid"]:
            missing.append(f"{record['round']} is not valid")
        elif block["aof"]["bytes"] is None:
            missing.append(f"the log was rewritten in {record['round']}")
        else:
            values.append(int(block["aof"]["bytes"]))
    return values, missing


def _wrong_responses(
    claim: Mapping[str, Any],
    experiment: Mapping[str, Any],
    records: Sequence[Record],
    expected: Expected,
) -> dict[str, Any]:
    responses = experiment["responses"]
    total = sum(responses[name] for name in ("warm", "cold_enabled", "cold_disabled"))
    row = {
        "compared": "responses that were not right, of all",
        "published": f"{responses['incorrect']:,} of {total:,}",
        "published_left": responses["incorrect"],
    }
    mine = [r for profile in expected.profiles for r in asked_for(records, profile, expected)]
    wanted = len(expected.profiles) * 2 * len(expected.numbers)
    counts = [r["ledger"]["counts"] for r in mine]
    issued = sum(c["issued"] for c in counts)
    bad = sum(c["issued"] - c["ok"] for c in counts)
    if not issued:
        return row | _not_measured("no round was measured")
    shown = {
        "measured": f"{bad:,} of {issued:,}{_label(mine)}",
        "measured_left": str(bad),
    }
    kinds = {k: sum(c.get(k, 0) for c in counts) for k in ("wrong", "error", "timeout")}
    if bad:
        listed = ", ".join(f"{n:,} {kind}" for kind, n in kinds.items() if n)
        return row | shown | {"verdict": CONTRADICTED, "why": f"not right: {listed}"}
    if len(mine) < wanted:
        why = f"{len(mine)} of {wanted} rounds are there"
        return row | shown | {"verdict": UNDECIDABLE, "why": why}
    why = "every response was checked against the documents after its trial"
    return row | shown | {"verdict": REPRODUCED, "why": why}


def _proof(
    claim: Mapping[str, Any], experiment: Mapping[str, Any], proof: Mapping[str, Any] | None
) -> dict[str, Any]:
    check = claim["check"]
    row = {
        "compared": f"check {check} of the crash proof, image {PROOF_IMAGE}",
        "published": f"passed on Valkey {experiment['proof']['valkey']}",
        "scale": NOT_MEASURED,
        "engine": NOT_MEASURED,
    }
    if proof is None:
        return row | _not_measured("no proof")
    entries = [c for c in proof["checks"] if c["id"] == check]
    mine = [
        c
        for c in entries
        if c.get("image", PROOF_IMAGE) == PROOF_IMAGE
        and c.get("server", PROOF_SERVER) == PROOF_SERVER
    ]
    if not mine:
        return row | _not_measured(
            f"the proof has no check {check} of {PROOF_IMAGE} on {PROOF_SERVER}"
        )
    row |= {
        "scale": str(proof.get("scale", "proof")),
        "engine": "; ".join(dict.fromkeys(str(c.get("server", PROOF_SERVER)) for c in mine)),
    }
    outcomes = [str(c["outcome"]) for c in mine]
    whys = "; ".join(dict.fromkeys(str(c["why"]) for c in mine if c.get("why")))
    passed = set(outcomes) == {"pass"}
    if passed and not proof.get("valid", True):
        # What made the proof invalid may be what let the check pass, such as a server not killed.
        whys = "; ".join([*([whys] if whys else []), "the proof as a whole is not valid"])
        verdict = UNDECIDABLE
    elif passed:
        verdict = REPRODUCED
    elif "fail" in outcomes:
        verdict = CONTRADICTED
    elif set(outcomes) <= {"not run"}:
        return row | _not_measured(whys or "the check was not run")
    else:
        verdict = UNDECIDABLE
    return row | {
        "measured": ", ".join(dict.fromkeys(outcomes)),
        "verdict": verdict,
        "why": whys or f"the check was seen to {'hold' if verdict == REPRODUCED else 'fail'}",
    }
