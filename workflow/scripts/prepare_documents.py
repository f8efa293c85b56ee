"""Fetch a corpus of documents, check it, and prepare it (rule `documents`)."""

import sys
from pathlib import Path
from typing import Any

from refill.corpora.fetch import fetch
from refill.corpora.flights import prepare_flights
from refill.edge import logged
from refill.progress import Progress

DOWNLOADS = Path("results/downloads")


def main(plan: dict[str, Any], out: Path, progress: Progress) -> None:
    """Prepare the corpus of a plan in the folder `out`."""
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
    )


if __name__ == "__main__":
    smk: Any = snakemake  # type: ignore[name-defined]  # noqa: F821 - Snakemake puts it here
    with logged(smk.log[0]) as terminal:
        plan = dict(smk.params.plan)
        main(
            plan,
            Path(smk.output[0]).parent,
            Progress(f"corpus {plan['name']}", terminal, sys.stdout),
        )
