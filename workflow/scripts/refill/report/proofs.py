"""The table of the AOF crash proof: one row for each check, image and server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

Record = Mapping[str, Any]

COLUMNS = (
    "check", "title", "source", "image", "server", "server_version", "outcome", "expected",
    "counts", "why", "evidence", "seconds", "form", "seed", "scale",
)  # fmt: skip


def proofs_table(records: Sequence[Record]) -> pd.DataFrame:
    """Return the checks of all proofs; a server that is missing is one row, `not run`.

    `counts` says whether a check decides whether the proof holds; `evidence` is JSON.
    """
    rows: list[dict[str, Any]] = []
    for record in records:
        common = {key: record[key] for key in ("form", "seed", "scale")}
        versions = {server["name"]: server["version"] for server in record["servers"]}
        for made in record["checks"]:
            kept = ("title", "source", "image", "server", "outcome", "expected", "why", "seconds")
            rows.append(
                {
                    "check": made["id"],
                    **{key: made[key] for key in kept},
                    "server_version": versions[made["server"]],
                    "counts": made["server"] == record["default_server"],
                    "evidence": json.dumps(made["evidence"], sort_keys=True),
                    **common,
                }
            )
        for server in record["servers"]:
            if server["status"] != "run":
                rows.append(
                    {
                        "check": "all",
                        "server": server["name"],
                        "outcome": "not run",
                        "counts": server["counts"],
                        "why": server["status"].removeprefix("not run: "),
                        **common,
                    }
                )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def write_table(records: Sequence[Record], folder: Path) -> None:
    """Write proofs.csv into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    proofs_table(records).to_csv(folder / "proofs.csv", index=False, lineterminator="\n")
