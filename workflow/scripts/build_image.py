"""Build an image from its pinned source and record its identity (rule `image`)."""

from pathlib import Path
from typing import Any

from refill.config import PROJECT
from refill.edge import logged
from refill.images import build

if __name__ == "__main__":
    smk: Any = snakemake  # type: ignore[name-defined]  # noqa: F821 - Snakemake puts it here
    with logged(smk.log[0]) as terminal:
        plan = dict(smk.params.plan)
        record = build(
            PROJECT,
            plan["name"],
            plan["entries"],
            Path(smk.output.archive),
            Path(smk.output.record),
            plan["code"],
        )
        print(f"image {plan['name']}: {record['id']}", file=terminal)
