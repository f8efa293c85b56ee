"""What must hold in `config/claims.yaml` beyond its schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

CELL_KEYS = ("profile", "cell", "operation", "engine", "clients")
LATENCIES = ("p50_ms", "p95_ms", "p99_ms", "max_ms", "mean_ms")


def check(claims: Mapping[str, Any]) -> list[str]:
    """Return what is wrong in `config/claims.yaml` beyond its schema, one line each."""
    problems = []
    experiment = claims["experiments"]["optimizers"]
    seen: set[str] = set()
    runs = experiment["runs"]
    for run in experiment["identical"]:
        if run not in runs:
            problems.append(f"experiments.optimizers.identical: unknown run {run!r}")
    for claim in experiment["claims"]:
        where = f"experiments.optimizers.claims: {claim['id']}"
        if claim["id"] in seen:
            problems.append(f"{where}: the id stands twice; give each claim one of its own")
        seen.add(claim["id"])
        problems += [f"{where}: {p}" for p in _check_claim(claim, runs)]
    gateway = claims["experiments"]["gateway"]
    problems += _check_cells(gateway["figures"])
    for claim in gateway["claims"]:
        where = f"experiments.gateway.claims: {claim['id']}"
        if claim["id"] in seen:
            problems.append(f"{where}: the id stands twice; give each claim one of its own")
        seen.add(claim["id"])
        problems += [f"{where}: {p}" for p in _check_gateway_claim(claim, gateway)]
    return problems


def _check_cells(figures: Sequence[Mapping[str, Any]]) -> list[str]:
    names = [_named(figure) for figure in figures]
    return [
        f"experiments.gateway.figures: {name}: stands {n} times; keep one"
        for name, n in Counter(names).items()
        if n > 1
    ]


def _check_gateway_claim(claim: Mapping[str, Any], gateway: Mapping[str, Any]) -> list[str]:
    if "cell" in claim:
        cell, quantile = claim["cell"], claim["quantile"]
        cells = [cell]
        if claim["statistic"] == "gateway_by_engine":
            cells.append({**cell, "engine": "gateway"})
        absent = [
            f"cell: experiments.gateway.figures has no {quantile} of {_named(one)}"
            for one in cells
            if quantile not in (figure_of(gateway, one) or {})
        ]
        return absent or _check_gateway_direction(claim, gateway)
    if claim["statistic"] == "log_growth" and ("right" in claim) == (claim["direction"] == "zero"):
        return [
            f"right: direction {claim['direction']} needs {'no' if 'right' in claim else 'a'} right"
        ]
    return _check_growth(claim, gateway) if claim["statistic"] == "log_growth" else []


def _check_gateway_direction(claim: Mapping[str, Any], gateway: Mapping[str, Any]) -> list[str]:
    """Hold `below` and `above` against the cell's figures; how much is `unchanged` is not told."""
    if claim["direction"] not in ("below", "above"):
        return []
    cell, quantile = claim["cell"], claim["quantile"]
    stated = (figure_of(gateway, cell) or {})[quantile]
    if claim["statistic"] != "gateway_by_engine":
        return _check_direction(claim["direction"], stated["new"], stated["old"])
    ours = (figure_of(gateway, {**cell, "engine": "gateway"}) or {})[quantile]
    image = claim["image"]
    return _check_direction(claim["direction"], ours[image], stated[image])


def published_log_growth(
    gateway: Mapping[str, Any], profile: str, cell: str
) -> Mapping[str, Sequence[int]]:
    """Return by image what the log grew by in each published round, in bytes."""
    name = "warm" if cell == "warm" else f"cold_{'en' if profile == 'on-main' else 'dis'}abled"
    growth: Mapping[str, Sequence[int]] = gateway["aof_growth_bytes"][name]
    return growth


def _check_growth(claim: Mapping[str, Any], gateway: Mapping[str, Any]) -> list[str]:
    known = [
        list(published_log_growth(gateway, side["profile"], side["cell"])[side["image"]])
        for side in (claim[name] for name in ("left", "right") if name in claim)
    ]
    if growth_holds(claim["direction"], known)[0]:
        return []
    shown = " and ".join(map(str, known))
    return [
        f"direction: is {claim['direction']}, but the published growth is {shown} bytes; "
        "mend the one that is wrong"
    ]


def growth_holds(direction: str, grown: Sequence[Sequence[int]]) -> tuple[bool, bool]:
    """Return whether a statement on growth holds in all rounds, and whether its opposite does."""
    if direction == "zero":
        return not any(grown[0]), all(grown[0])
    left, right = grown
    if direction == "equal":
        return len({*left, *right}) == 1, not {*left} & {*right}
    return min(left) > max(right), max(left) <= min(right)


def figure_of(gateway: Mapping[str, Any], cell: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the published figures of a cell, named by `CELL_KEYS`; None where it has none."""
    found: Mapping[str, Any] | None = next(
        (f for f in gateway["figures"] if all(f[key] == cell[key] for key in CELL_KEYS)), None
    )
    return found


def _named(cell: Mapping[str, Any]) -> str:
    return ", ".join(str(cell[key]) for key in CELL_KEYS)


def _check_claim(claim: Mapping[str, Any], runs: Mapping[str, Any]) -> list[str]:
    problems = []
    latency = claim["statistic"] in (*LATENCIES, "recall_mean")
    for side in ("left", "right"):
        if side not in claim:
            continue
        if claim[side]["run"] not in runs:
            problems.append(f"{side}.run: unknown run {claim[side]['run']!r}")
            continue
        if claim["statistic"] not in ("drain_s", "upload_s") and "phase" not in claim[side]:
            problems.append(f"{side}.phase: {claim['statistic']} needs a phase")
        if latency and "loop" not in claim[side]:
            problems.append(f"{side}.loop: {claim['statistic']} needs a loop, open or closed")
        known = published(runs[claim[side]["run"]], claim["statistic"], claim[side].get("phase"))
        if known is not None and known != claim["published"][side]:
            problems.append(
                f"published.{side}: is {claim['published'][side]}, the run's own entry says {known}"
            )
    stated = claim["published"]
    return [*problems, *_check_direction(claim["direction"], stated["left"], stated["right"])]


def _check_direction(direction: str, left: Any, right: Any) -> list[str]:
    """Hold a direction against the published figures, where they are: it must be theirs."""
    if direction in ("seen", "not_seen"):
        told = None if left is None else "seen" if left else "not_seen"
        figures = f"published.left is {str(left).lower()}"
    else:
        known = left is not None and right is not None
        told = (
            ("above" if left > right else "below" if left < right else "equal") if known else None
        )
        figures = f"the published figures are {left} and {right}"
    if told is None or told == direction:
        return []
    return [f"direction: is {direction}, but {figures}: {told}; mend the one that is wrong"]


def published(run: Mapping[str, Any], statistic: str, phase: str | None) -> float | None:
    """Return the figure that a run's entry states for a statistic; None where it states none."""
    if statistic == "drain_s":
        return float(run["draining_s"])
    if statistic == "upload_s":
        return float(run["upload_s"])
    if statistic not in LATENCIES or phase is None:
        return None
    block = run["phases"].get("followup" if phase.startswith("followup") else phase)
    return float(block[statistic]) if block else None
