"""How a table is written."""

from __future__ import annotations

from pathlib import Path

import pandas as pd


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table as all of results/tables are: six digits, line feeds, no index."""
    table.to_csv(path, index=False, lineterminator="\n", float_format="%.6g")
