"""Run one optimizer configuration once (rule `optimizer`)."""

from pathlib import Path
from typing import IO, Any

from refill.edge import logged
from refill.phases.measure_optimizer import Files, measure
from refill.progress import Progress


def main(plan: dict[str, Any], files: Files, terminal: IO[str], log: IO[str]) -> None:
    """Measure, and say in the end what came of it."""
    progress = Progress(f"{plan['id']}/{plan['repeat']}", terminal, log)
    record = measure(plan, files, progress)
    progress.ended(record, files.record, record["outcome"])


if __name__ == "__main__":
    import sys

    smk: Any = snakemake  # type: ignore[name-defined]  # noqa: F821 - Snakemake puts it here
    with logged(smk.log[0]) as terminal:
        main(
            dict(smk.params.plan),
            Files(
                root=Path(),
                corpus=Path(smk.input.corpus).parent,
                image=Path(smk.input.images[0]) if smk.input.images else None,
                record=Path(smk.output.record),
                ledger=Path(smk.output.ledger),
                polls=Path(smk.output.polls),
            ),
            terminal,
            sys.stdout,
        )
