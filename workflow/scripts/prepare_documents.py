"""Fetch a corpus of documents, check it, and prepare it (rule `documents`)."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from refill.corpora.fetch import fetch
from refill.corpora.flights import prepare_flights
from refill.edge import logged
from refill.evidence.turns import preparing
from refill.progress import Progress

DOWNLOADS = Path("results/downloads")


def main(plan: dict[str, Any], out: Path, progress: Progress, check: Callable[[], None]) -> None:
    """Prepare the corpus of a plan in the folder `out`, unless `check` raises in the end."""
    spec, name = plan["spec"], plan["name"]
    fetched = fetch(spec, name, DOWNLOADS / name, progress.say)
    prepare_flights(
        spec,
        name,
        plan["documents"],
        plan["seed"],
        out,
        fetched,
        progress.say,
        plan["code"],
        check,
    )


if __name__ == "__main__":
    smk: Any = snakemake  # type: ignore[name-defined]  # noqa: F821 - Snakemake puts it here
    with logged(smk.log[0]) as terminal:
        plan = dict(smk.params.plan)
        with preparing(Path(), f"corpora/{plan['name']}") as check:
            main(
                plan,
                Path(smk.output[0]).parent,
                Progress(f"corpus {plan['name']}", terminal, sys.stdout),
                check,
            )
