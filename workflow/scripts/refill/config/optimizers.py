"""From an optimizer configuration to the numbers that Qdrant takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refill.config import schemas
from refill.config.errors import ConfigError, key_text

# Qdrant's own defaults, for a reconfiguration back to them: a PATCH cannot say "default".
# Source: Qdrant 1.19 server configuration (indexing_threshold in KB).
QDRANT_DEFAULTS: Mapping[str, int | float | bool] = {
    "deleted_threshold": 0.2,
    "vacuum_min_vector_number": 1000,
    "default_segment_number": 0,
    "indexing_threshold": 10000,
    "prevent_unoptimized": False,
}

BYTES_PER_COMPONENT = 4  # float32


def resolve_optimizers(
    entry: Mapping[str, Any],
    defaults: Mapping[str, Any],
    overrides: Mapping[str, Any],
    points: int,
    dimension: int,
    cpus: int,
    hnsw_defaults: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what a configuration means for `points` vectors of `dimension` float32 on `cpus`.

    `entry` is one of `load_optimizers()` (its id under "id"), `defaults` and `overrides` are
    those of the scale (`optimizers.defaults`, `optimizers.overrides`: by id), `hnsw_defaults` its
    HNSW settings. Settings are merged in the order defaults, entry, overrides[id]; a null takes a
    setting back to Qdrant's default.
    Returns {"requested": {optimizers, hnsw, followup} as merged, "applied": the same with plain
    numbers (sizes in KB of vectors, followup.delete in points), "notes": [what was changed]}.
    A setting that is not in `applied` is left to Qdrant. Raises ConfigError that names the entry.
    """
    name = str(entry.get("id", "configuration"))
    scale = Scale(name, defaults, points, dimension, cpus)
    override = overrides.get(name) or {}
    _check(name, entry, defaults, hnsw_defaults or {}, override)
    optimizers = {**defaults, **entry.get("optimizers", {}), **override}
    notes = [
        f"optimizers.{key}: {_text(value)} by this scale in place of "
        f"{_text(entry.get('optimizers', {}).get(key, defaults.get(key, 'the default')))}"
        for key, value in override.items()
    ]
    hnsw = {**(hnsw_defaults or {}), **entry.get("hnsw", {})}
    followup = dict(entry.get("followup", {}))
    applied = {
        "optimizers": scale.settings("optimizers", optimizers, notes),
        "hnsw": scale.settings("hnsw", hnsw, notes),
        "followup": _followup(followup, scale, notes),
    }
    requested = {"optimizers": optimizers, "hnsw": hnsw, "followup": followup}
    return {"requested": requested, "applied": applied, "notes": notes}


class Scale:
    """What the forms {share}, {per_core} and {default} stand for."""

    def __init__(
        self, name: str, defaults: Mapping[str, Any], points: int, dimension: int, cpus: int
    ) -> None:
        if min(points, dimension, cpus) < 1:
            raise ConfigError(
                [
                    f"{name}: needs at least one point, dimension and CPU, has {points} points, "
                    f"{dimension} dimensions, {cpus} CPUs"
                ]
            )
        self.name = name
        self.defaults = defaults
        self.points = points
        self.cpus = cpus
        self.data_kb = points * dimension * BYTES_PER_COMPONENT / 1024

    def settings(
        self, where: str, values: Mapping[str, Any], notes: list[str], patch: bool = False
    ) -> dict[str, Any]:
        """Return `values` as plain numbers; what is left to Qdrant is left out.

        With `patch`, which changes a collection that exists, nothing can be left out: a default
        must be a number. Adds to `notes` what was worked out.
        """
        plain = {}
        for key, value in values.items():
            number = self._number(where, key, value, patch)
            if value != number:
                meaning = "Qdrant's default" if number is None else number
                notes.append(f"{where}.{key}: {_text(value)} is {meaning}{self._basis(value)}")
            if number is not None:
                plain[key] = number
        vacuum = plain.get("vacuum_min_vector_number", 100)
        if vacuum < 100:
            raise ConfigError(
                [
                    f"{self.name}: {where}.vacuum_min_vector_number: must be >= 100 "
                    f"(Qdrant's minimum), is {vacuum}: raise it"
                ]
            )
        return plain

    def _number(self, where: str, key: str, value: Any, patch: bool) -> Any:
        if isinstance(value, Mapping) and "default" in value:
            value = self.defaults.get(key) if where.endswith("optimizers") else None
            if isinstance(value, Mapping) and "default" in value:
                value = None
        if isinstance(value, Mapping) and "share" in value:
            return max(1, round(value["share"] * self.data_kb))
        if isinstance(value, Mapping) and "per_core" in value:
            return max(1, round(value["per_core"] * self.cpus))
        if value is None and patch:
            if key not in QDRANT_DEFAULTS:
                raise ConfigError(
                    [
                        f"{self.name}: {where}.{key}: Qdrant's default cannot be asked for when a "
                        "collection is changed: write the number"
                    ]
                )
            return QDRANT_DEFAULTS[key]
        return value

    def _basis(self, value: Any) -> str:
        if isinstance(value, Mapping) and "per_core" in value:
            return f" ({self.cpus} CPUs)"
        if isinstance(value, Mapping) and "share" in value:
            return f" KB ({self.data_kb:.0f} KB of vectors)"
        return ""


def _followup(followup: Mapping[str, Any], scale: Scale, notes: list[str]) -> dict[str, Any]:
    if "delete" in followup:
        share = followup["delete"]["share"]
        deleted = round(share * scale.points)
        if not 0 < deleted < scale.points:
            raise ConfigError(
                [
                    f"{scale.name}: followup.delete.share: {share} of {scale.points} points is "
                    f"{deleted}: change the share or upload more points"
                ]
            )
        notes.append(f"followup.delete: share {share} is {deleted} of {scale.points} points")
        return {"delete": {"points": deleted}}
    if "reconfigure" in followup:
        return {
            "reconfigure": {
                part: scale.settings(f"followup.reconfigure.{part}", values, notes, patch=True)
                for part, values in followup["reconfigure"].items()
            }
        }
    return {}


def _check(
    name: str,
    entry: Mapping[str, Any],
    defaults: Mapping[str, Any],
    hnsw_defaults: Mapping[str, Any],
    override: Mapping[str, Any],
) -> None:
    body = {key: value for key, value in entry.items() if key != "id"}
    described = {"group": "x", "label": "x", "description": "x", **body}
    parts = (
        (f"{name}: ", described, "/$defs/configuration"),
        (f"{name}: optimizers.defaults.", defaults, "/$defs/optimizers"),
        (f"{name}: optimizers.hnsw_defaults.", hnsw_defaults, "/$defs/hnsw"),
        (f"{name}: optimizers.overrides.{name}.", override, "/$defs/optimizers"),
    )
    found = [
        f"{prefix}{key_text(problem.where)}: {problem.text}"
        for prefix, value, fragment in parts
        for problem in schemas.problems("optimizers.schema.yaml", value, fragment)
    ]
    if found:
        raise ConfigError(found)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(item)}" for key, item in value.items()) + "}"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)
