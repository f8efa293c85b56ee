"""Fetch a corpus if it is a package, check it, and prepare it (rule `corpus`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from refill.corpora.prepare import prepare
from refill.corpora.sources import fetch
from refill.edge import logged
from refill.evidence.records import read_json, write_json
from refill.progress import Progress


def main(plan: dict[str, Any], out: Path, downloads: Path, progress: Progress) -> None:
    """Prepare the corpus of a plan in the folder `out`."""
    spec, name = plan["spec"], plan["name"]
    fetched = fetch(spec, name, downloads)
    prepare(
        spec, name, plan["points"], plan["queries"], plan["seed"], out, fetched, progress.say
    )
    record = out / "corpus.json"
    write_json(record, {**read_json(record, "refill.corpus/1"), "code": plan["code"]})


if __name__ == "__main__":
    import sys

    smk: Any = snakemake  # type: ignore[name-defined]  # noqa: F821 - Snakemake puts it here
    with logged(smk.log[0]) as terminal:
        plan = dict(smk.params.plan)
        progress = Progress(f"corpus {plan['name']}", terminal, sys.stdout)
        main(plan, Path(smk.output[0]).parent, Path("results/downloads"), progress)
