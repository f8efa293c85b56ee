"""What the page shows of the AOF crash proof, as text: outcomes, evidence, cuts, kills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from refill.report.text import NONE

Record = Mapping[str, Any]

# By outcome: the class of its look.
LOOKS = {"pass": "ok", "fail": "bad", "void": "bad", "not run": ""}
SOURCES = {"published": "published", "beyond": "beyond it"}
IMAGES = ("old", "new")
_POWER, _CRASH = "power-cut-", "crash-"
_SHORT = 400


def section(records: Sequence[Record]) -> dict[str, Any]:
    """Return everything that `templates/proofs.html.j2` prints; `records`: none or one."""
    if not records:
        return {"there": False}
    record = records[-1]
    checks = record["checks"]
    columns = [
        (server, image)
        for server in dict.fromkeys(made["server"] for made in checks)
        for image in IMAGES
    ]
    found = {(m["id"], m["server"], m["image"]): m for m in checks}
    ids = {made["id"]: made for made in checks}
    default = record["default_server"]
    return {
        "there": True,
        "record": record,
        "valid": record["valid"],
        "syncs_seen": _syncs_seen(checks, default),
        "servers": [_server(server, record["counts"]) for server in record["servers"]],
        "images": {name: _image(image) for name, image in record["images"].items()},
        "containers": record["runtime"] == "docker",
        "embedded": "reference" not in record["images"]["qdrant"],
        "columns": columns,
        "rows": [
            {
                "title": made["title"],
                "id": id_,
                "source": SOURCES[made["source"]],
                "cells": [_cell(found.get((id_, *column))) for column in columns],
            }
            for id_, made in ids.items()
            if not id_.startswith(_POWER)
        ],
        "evidence": [
            _evidence(made)
            for made in checks
            if made["server"] == default and not made["id"].startswith((_POWER, _CRASH))
        ],
        "cuts": [_cut(m) for m in checks if m["id"].startswith(_POWER) and m["server"] == default],
        "kills": [_kills(m) for m in checks if m["id"].startswith(_CRASH) and m["evidence"]],
        "troubles": [
            (f"{m['image']} on {m['server']}: {m['title']}", m["outcome"], m["why"])
            for m in checks
            if m["outcome"] in ("fail", "void")
            or (m["outcome"] == "not run" and m["server"] == default)
        ],
    }


def _syncs_seen(checks: Sequence[Record], default: str) -> bool:
    """Return whether a check that sees a sync, or the want of one, passed for each image."""
    seen = {
        made["image"]
        for made in checks
        if made["server"] == default
        and made["outcome"] == "pass"
        and (
            made["id"] == "sync-counts"
            or (made["id"].startswith(_POWER) and made["id"].endswith("-always"))
        )
    }
    return seen >= set(IMAGES)


def _server(server: Mapping[str, Any], counts: Mapping[str, Any]) -> dict[str, str]:
    seen = counts.get(server["name"], {})
    missing = server["status"] != "run"
    return {
        "name": server["name"],
        "version": f"{server['product']} {server['version']}" if not missing else NONE,
        "status": server["status"] if missing else _listed(seen),
        "scripts": "" if missing else server["scripts"],
        "counts": "yes" if server["counts"] else "no, told of only",
    }


def _image(image: Mapping[str, Any]) -> tuple[str, str]:
    """Return an image's name and its identity; one that is not built here has no tag of ours."""
    return image.get("tag") or image["reference"], image["id"]


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {outcome}" for outcome, number in counts.items() if number)


def _cell(made: Mapping[str, Any] | None) -> dict[str, str]:
    if made is None:
        return {"word": "not run", "look": "", "note": ""}
    expected = made["expected"] if made["expected"] != "holds" else ""
    # The whole reason stands in the list of what did not pass.
    note = made["why"] if made["outcome"] != "pass" else expected
    return {"word": made["outcome"], "look": LOOKS[made["outcome"]], "note": _cut_short(note, 70)}


def _evidence(made: Mapping[str, Any]) -> dict[str, str]:
    return {
        "id": made["id"],
        "image": made["image"],
        "word": made["outcome"],
        "look": LOOKS[made["outcome"]],
        "expected": made["expected"],
        "evidence": evidence_text(made["evidence"]) or NONE,
    }


def evidence_text(evidence: Mapping[str, Any]) -> str:
    """Return evidence as one line of names and figures."""
    parts = (f"{name.replace('_', ' ')} {_value(value)}" for name, value in evidence.items())
    return "; ".join(parts)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{key} {_value(item)}" for key, item in value.items()) + ")"
    if isinstance(value, list):
        return "(" + ", ".join(map(_value, value)) + ")"
    return str(value)


def _cut(made: Mapping[str, Any]) -> dict[str, str]:
    evidence = made["evidence"]
    kind, _, policy = made["id"].removeprefix(_POWER).partition("-")
    return {
        "image": made["image"],
        "disk": kind,
        "policy": policy,
        "role": "property" if policy == "always" else "control, must lose",
        "acknowledged": _number(evidence, "acknowledged"),
        "lost": _number(evidence, "lost"),
        "word": made["outcome"],
        "look": LOOKS[made["outcome"]],
        "why": _cut_short(made["why"]),
    }


def _number(evidence: Mapping[str, Any], name: str) -> str:
    return _value(evidence[name]) if name in evidence else NONE


def _kills(made: Mapping[str, Any]) -> dict[str, str]:
    evidence = dict(made["evidence"])
    gateway = made["id"] == "crash-gateway"
    killed = "gateway kills" if gateway else "kills"
    first = {name: evidence.pop(name, None) for name in (killed, "seed")}
    return {
        "what": "gateway" if gateway else "server",
        "image": made["image"],
        "server": made["server"],
        "kills": _value(first[killed]) if first[killed] is not None else NONE,
        "seed": str(first["seed"]),
        "seen": evidence_text(evidence),
        "word": made["outcome"],
        "look": LOOKS[made["outcome"]],
        "why": _cut_short(made["why"]),
    }


def _cut_short(text: str, length: int = _SHORT) -> str:
    return text if len(text) <= length else f"{text[:length].rstrip()}..."
