"""Published claims held against measured records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from refill.config.claims import LATENCIES
from refill.config.claims import published as published_figure
from refill.report import text
from refill.report.gateway_claims import gateway_rows
from refill.report.lookup import (
    NOT_MEASURED,
    SHARES,
    figure,
    optimizer_seen,
    phase_of,
    usable,
)
from refill.report.machine import differing, flat, lasting, measured_alike, mixed_runs, noted
from refill.report.rounds import NO_ROUNDS, Expected
from refill.stats.ratios import LEVEL
from refill.stats.repeats import Effect, Noise, effect, noise
from refill.stats.verdict import (
    CONTRADICTED,
    REPRODUCED,
    UNDECIDABLE,
    Value,
    Verdict,
    judge,
    judge_seen,
    noise_floor,
)

Record = Mapping[str, Any]

OBSERVED = "an observation, not a comparison: it has no noise floor"
VERDICTS = (REPRODUCED, CONTRADICTED, UNDECIDABLE, NOT_MEASURED)
UNITS = {"drain_s": "s", "upload_s": "s", **dict.fromkeys(LATENCIES, "ms")}
CLAIM_COLUMNS = (
    "experiment", "claim", "text", "compared", "published", "published_left", "published_right",
    "published_spread", "measured", "measured_left", "measured_right", "ratio", "ratio_low",
    "ratio_high", "interval_level", "effect", "noise_floor", "verdict", "why", "open_loop",
    "recall", "visible_share", "scale", "engine", "note",
)  # fmt: skip


@dataclass(frozen=True)
class Identical:
    """The measured runs that are the same configuration, and why others of the list are not."""

    records: tuple[Record, ...]
    left_out: tuple[str, ...]

    def sentence(self) -> str:
        """Return one sentence for the report."""
        names = ", ".join(f"{r['id']} ({r['repeat']})" for r in self.records) or "none"
        extra = f" Left out: {'; '.join(self.left_out)}." if self.left_out else ""
        return f"Identical runs, id (repeat): {names}.{extra}"


def identical_runs(records: Sequence[Record], ids: Sequence[str]) -> Identical:
    """Return the largest set of usable records of `ids` whose measured setting is truly equal.

    Equal means: applied configuration, corpus, engine, sampler, scale, code and machine. What was
    asked for under one name can differ at a small scale, and then it is no measure of noise.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record["id"] in ids and usable(record):
            groups.setdefault(_setting(record), []).append(record)
    if not groups:
        return Identical((), ())
    chosen = max(groups.values(), key=len)
    left_out = [
        f"{record['id']} ({record['repeat']}): {_difference(record, chosen[0])}"
        for group in groups.values()
        if group is not chosen
        for record in group
    ]
    return Identical(tuple(chosen), tuple(left_out))


def claims_table(
    records: Sequence[Record],
    claims: Mapping[str, Any],
    rounds: Sequence[Record] = (),
    expected: Expected = NO_ROUNDS,
    proof: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Return one row a claim: published, measured, verdict and why, on what it was measured.

    Columns are `CLAIM_COLUMNS`. Latencies of optimizer runs are compared in the loop of the
    published figure; the same comparison in the open loop stands beside it. Repeats are listed, not
    averaged. `ratio` is left / right with its interval; shares are compared by difference and have
    theirs in `measured`.

    Args:
        records: of the optimizer runs.
        claims: config/claims.yaml.
        rounds: records of the gateway rounds.
        expected: what the rounds were to measure.
        proof: the crash proof's record, None without one.
    """
    experiment = claims["experiments"]["optimizers"]
    same = identical_runs(records, experiment["identical"])
    rows = gateway_rows(claims["experiments"]["gateway"], rounds, expected, proof)
    rows += [
        {"experiment": "optimizers", **_claim_row(claim, records, same.records, experiment)}
        for claim in experiment["claims"]
    ]
    table = pd.DataFrame(rows, columns=list(CLAIM_COLUMNS))
    texts = ["published_spread", "open_loop", "recall", "visible_share", "note"]
    return table.fillna(dict.fromkeys(texts, ""))


def _claim_row(
    claim: Mapping[str, Any],
    records: Sequence[Record],
    same: Sequence[Record],
    experiment: Mapping[str, Any],
) -> dict[str, Any]:
    sides = [claim[side] for side in ("left", "right") if side in claim]
    used = [r for side in sides for r in records if r["id"] == side["run"]]
    unit = UNITS.get(claim["statistic"], "")
    row: dict[str, Any] = {
        "claim": claim["id"],
        "text": claim["text"],
        "compared": _compared(claim),
        "published": _pair(claim["published"].values(), unit, claim["direction"]),
        "published_left": claim["published"]["left"],
        "published_right": claim["published"]["right"],
        "published_spread": _published_spread(claim, experiment),
        "scale": "; ".join(sorted({text.scale(r) for r in used})) or NOT_MEASURED,
        "engine": "; ".join(sorted({text.engine(r) for r in used})) or NOT_MEASURED,
        "recall": _beside(sides, records, _recall),
        "visible_share": _beside(sides, records, _visible),
        "note": "; ".join(filter(None, (claim.get("note"), noted(used)))),
    }
    label = " (embedded engine)" if any(r["engine"]["embedded"] for r in used) else ""
    if claim["statistic"] == "optimizer_seen":
        return row | _decide_seen(claim, records, same, label)
    return row | _decide(claim, records, same, label)


def _decide_seen(
    claim: Mapping[str, Any], records: Sequence[Record], same: Sequence[Record], label: str
) -> dict[str, Any]:
    """Decide what was seen or not: an observation, on which no noise floor can be put.

    All repeats must agree, and of a run that has twins these too.
    """
    side = claim["left"]
    mine = [r for r in records if r["id"] == side["run"]]
    twins = [r for r in same if r not in mine] if any(r in same for r in mine) else []
    looked = [optimizer_seen(r, side["phase"], claim["optimizer"]) for r in [*mine, *twins]]
    seen = [value for value in looked if isinstance(value, bool)]
    if not seen:
        reasons = [value for value in looked if isinstance(value, str)]
        return _not_measured(reasons, [] if looked else [side["run"]])
    used = [r for r in [*mine, *twins] if usable(r)]
    verdict = _refused(used) or judge_seen(seen, claim["direction"] == "seen")
    measured = ", ".join("seen" if value else "not seen" for value in seen) + label
    decided = _decided(verdict, measured)
    left_out = [f"left out: {value}" for value in looked if isinstance(value, str)]
    return decided | {"why": "; ".join([f"{verdict.why} ({OBSERVED})", *left_out])}


def _decide(
    claim: Mapping[str, Any], records: Sequence[Record], same: Sequence[Record], label: str
) -> dict[str, Any]:
    statistic, loop = claim["statistic"], claim["left"].get("loop")
    left, right, missing = _values(claim, records, loop)
    if loop == "closed" and not (left and right):
        # A short drain can end before its first closed-loop window.
        left, right, open_missing = _values(claim, records, "open")
        loop, missing = "open", [*missing, *open_missing]
        label = f" in the open loop{label}"
    if not left or not right:
        measured_ids = {r["id"] for r in records}
        absent = [claim[s]["run"] for s in ("left", "right") if claim[s]["run"] not in measured_ids]
        return _not_measured(missing, absent)
    verdict, span = _judged(claim, records, same, loop, left, right)
    shown = f"{_listed(left, statistic)} against {_listed(right, statistic)}"
    decided = _decided(verdict, f"{shown}{_effect_text(span, statistic)}{label}") | {
        "measured_left": _numbers(left),
        "measured_right": _numbers(right),
    }
    if span and statistic not in SHARES:
        decided |= {
            "ratio": span.effect,
            "ratio_low": span.low,
            "ratio_high": span.high,
            "interval_level": LEVEL,
        }
    if missing:
        decided["why"] += f"; left out: {'; '.join(missing)}"
    if statistic in LATENCIES and loop == "closed":
        decided["open_loop"] = _open_loop(claim, records, same)
    return decided


def _comparable(claim: Mapping[str, Any], records: Sequence[Record]) -> Verdict | None:
    """Refuse a comparison over runs that differ in more than their configuration."""
    return _refused(_sides(claim, records))


def _sides(claim: Mapping[str, Any], records: Sequence[Record]) -> list[Record]:
    runs = (claim["left"]["run"], claim["right"]["run"])
    return [r for r in records if r["id"] in runs and usable(r)]


def _refused(used: Sequence[Record]) -> Verdict | None:
    found = mixed_runs(used)
    if not found:
        return None
    why = f"not comparable: the runs differ in {', '.join(found)}: measure them anew"
    return Verdict(UNDECIDABLE, why)


def _open_loop(claim: Mapping[str, Any], records: Sequence[Record], same: Sequence[Record]) -> str:
    left, right, missing = _values(claim, records, "open")
    if not left or not right:
        return f"{NOT_MEASURED}: {'; '.join(missing)}"
    verdict, span = _judged(claim, records, same, "open", left, right)
    statistic = claim["statistic"]
    shown = f"{_listed(left, statistic)} against {_listed(right, statistic)}"
    return f"{shown}{_effect_text(span, statistic)}: {verdict.verdict}"


def _values(
    claim: Mapping[str, Any], records: Sequence[Record], loop: str | None
) -> tuple[list[Value], list[Value], list[str]]:
    found: dict[str, list[Value]] = {"left": [], "right": []}
    missing: list[str] = []
    for side, values in found.items():
        for record in records:
            if record["id"] != claim[side]["run"]:
                continue
            got = figure(record, claim["statistic"], claim[side].get("phase"), loop)
            if isinstance(got, Value):
                values.append(got)
            else:
                missing.append(got)
    return found["left"], found["right"], missing


def _judged(
    claim: Mapping[str, Any],
    records: Sequence[Record],
    same: Sequence[Record],
    loop: str | None,
    left: Sequence[Value],
    right: Sequence[Value],
) -> tuple[Verdict, Effect | None]:
    """Return the verdict, and the effect with its interval where one can be formed.

    The effect of the closest pair of repeats must exceed the noise of both sides' phases. Then no
    resample of the repeats is without effect, so its interval is on one side too.
    """
    # Identical runs of another engine or machine tell nothing of the noise of these.
    alike = measured_alike(same, _sides(claim, records))
    found = [_noise(claim, side, records, alike, loop) for side in ("left", "right")]
    floors = [noise.floor(len(left), len(right)) for noise in found]
    refused = _comparable(claim, records)
    if refused:
        return refused, None
    span = effect(left, right, found)
    verdict = judge(left, right, claim["direction"], floors)
    return verdict, span


def _noise(
    claim: Mapping[str, Any],
    side: str,
    records: Sequence[Record],
    same: Sequence[Record],
    loop: str | None,
) -> Noise:
    """Return the noise of one side's statistic: identical runs, and the repeats of the side.

    Identical runs have no follow-up, so its phases use the plain ones of theirs.
    """
    statistic, part = claim["statistic"], claim[side]
    phase = part.get("phase", "")
    loop = loop or part.get("loop")

    def values(of: Sequence[Record], where: str) -> list[Value]:
        got = [figure(r, statistic, where, loop) for r in of]
        return [value for value in got if isinstance(value, Value)]

    mine = [r for r in records if r["id"] == part["run"] and r not in same]
    identical = values(same, phase.removeprefix("followup-"))
    return noise(identical, [values(mine, phase)], statistic not in SHARES)


def _effect_text(span: Effect | None, statistic: str) -> str:
    if span is None:
        return ""
    name = "difference" if statistic in SHARES else "ratio"
    return f", {name} {span.effect:.3g} [{span.low:.3g}, {span.high:.3g}]"


def _decided(verdict: Verdict, measured: str) -> dict[str, Any]:
    return {
        "measured": measured,
        "effect": verdict.effect,
        "noise_floor": verdict.floor,
        "verdict": verdict.verdict,
        "why": verdict.why,
        "open_loop": "",
    }


def _not_measured(reasons: Sequence[str], absent: Sequence[str]) -> dict[str, Any]:
    parts = [*reasons, *(f"no record of {run}" for run in absent)]
    why = "; ".join(dict.fromkeys(parts))
    return {"measured": NOT_MEASURED, "verdict": NOT_MEASURED, "why": why, "open_loop": ""}


def _published_spread(claim: Mapping[str, Any], experiment: Mapping[str, Any]) -> str:
    """Say whether the published effect itself is above the spread of the published twins."""
    left, right = claim["published"]["left"], claim["published"]["right"]
    if claim["statistic"] == "optimizer_seen" or left is None or right is None:
        return ""
    factors = []
    for side in ("left", "right"):
        phase = claim[side].get("phase", "").removeprefix("followup-")
        twins = [
            published_figure(experiment["runs"][run], claim["statistic"], phase)
            for run in experiment["identical"]
        ]
        known = [Value(value) for value in twins if value is not None]
        factors.append(noise_floor(known, relative=True).size)
    sizes = [size for size in factors if size is not None]
    if not sizes or min(left, right) <= 0:
        return ""
    effect, floor = max(left, right) / min(left, right), max(sizes)
    where = "within" if effect <= floor else "above"
    return f"effect {text.number(effect)}x, {where} the published spread {text.number(floor)}x"


def _compared(claim: Mapping[str, Any]) -> str:
    def side(part: Mapping[str, Any]) -> str:
        loop = f"{part['loop']} loop" if "loop" in part else ""
        return " ".join(text for text in (part["run"], part.get("phase", ""), loop) if text)

    if claim["statistic"] == "optimizer_seen":
        return f"optimizer {claim['optimizer']} in {side(claim['left'])}"
    return f"{claim['statistic']}: {side(claim['left'])} against {side(claim['right'])}"


def _pair(values: Any, unit: str, direction: str) -> str:
    left, right = values
    if direction in ("seen", "not_seen"):
        return "seen" if left else "not seen"
    if left is None or right is None:
        return "no figure published"
    return f"{text.printed(left)} {unit} against {text.printed(right)} {unit}"


def _listed(values: Sequence[Value], statistic: str) -> str:
    if statistic == "recall_mean":
        return ", ".join(text.recall(v.value) for v in values)
    if statistic == "visible_share_min":
        return ", ".join(text.share(v.value) for v in values)
    listed = ", ".join(text.value(v) for v in values)
    return f"{listed} {UNITS[statistic]}"


def _numbers(values: Sequence[Value]) -> str:
    return ";".join(
        f"{'>=' if v.bound else '<=' if v.at_most else ''}{v.value:.6g}" for v in values
    )


def _beside(sides: Sequence[Mapping[str, Any]], records: Sequence[Record], read: Any) -> str:
    parts = []
    for side in sides:
        values = [read(r, side) for r in records if r["id"] == side["run"] and usable(r)]
        parts.append(", ".join(values) or text.NONE)
    return " against ".join(parts)


def _recall(record: Record, side: Mapping[str, Any]) -> str:
    block = phase_of(record, side.get("phase", "draining"))
    if block is None:
        return text.NONE
    loop = block.get(side.get("loop", ""))
    value = loop["recall_mean"] if loop else (block.get("recall") or {}).get("mean")
    return text.recall(value)


def _visible(record: Record, side: Mapping[str, Any]) -> str:
    block = phase_of(record, side.get("phase", "draining"))
    return text.share((block.get("visible_share") or {}).get("min") if block else None)


def _setting(record: Record) -> str:
    return json.dumps(_setting_parts(record), sort_keys=True)


def _setting_parts(record: Record) -> dict[str, Any]:
    return {
        "configuration": record["configuration"]["applied"],
        "corpus": record["corpus"],
        "engine": record["engine"],
        "sampler": record["sampler"],
        "scale": record["scale"],
        "code": record["code"],
        "machine": lasting(record["host"]),
    }


def _difference(record: Record, other: Record) -> str:
    mine, its = flat(_setting_parts(record)), flat(_setting_parts(other))
    keys = differing([_setting_parts(record), _setting_parts(other)])
    return ", ".join(f"{k} is {_brief(mine.get(k))}, not {_brief(its.get(k))}" for k in keys)


def _brief(value: Any) -> str:
    """Return a value in a sentence: of a hash, enough to tell it from another."""
    shown = "unset" if value is None else str(value)
    return f"{shown[:10]}…" if len(shown) > 20 else shown
