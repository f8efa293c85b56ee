"""Run one round of the gateway experiment (rules `round_on` and `round_off`)."""

from pathlib import Path
from typing import IO, Any

from refill.edge import logged
from refill.phases.measure_round import Files, measure
from refill.progress import Progress
from refill.rounds_node import check_node, check_same_node


def main(plan: dict[str, Any], files: Files, terminal: IO[str], log: IO[str]) -> None:
    """Measure, and say in the end what came of it."""
    progress = Progress(f"{plan['profile']}/{plan['image']}-{plan['n']}", terminal, log)
    record = measure(plan, files, progress)
    progress.ended(record, files.record, record["outcome"])


if __name__ == "__main__":
    import sys

    smk: Any = snakemake  # type: ignore[name-defined]  # noqa: F821 - Snakemake puts it here
    with logged(smk.log[0]) as terminal:
        if smk.input.node:
            check_node(Path(smk.input.node))
        else:
            check_same_node(Path("results/rounds"))
        plan = dict(smk.params.plan)
        images = {Path(path).stem: Path(path) for path in smk.input.images}
        main(
            plan,
            Files(
                root=Path(),
                corpus=Path(smk.input.corpus[0]).parent,
                gateway_image=images[plan["gateway_image"]],
                qdrant_image=images.get(plan["qdrant_image"]),
                valkey_image=images.get(plan["valkey_image"]),
                record=Path(smk.output.record),
                ledger=Path(smk.output.ledger),
                resources=Path(smk.output.resources),
                profiles={
                    name: Path(smk.output[name])
                    for name in ("warm", "cold")
                    if name in smk.output.keys()  # noqa: SIM118 - a Snakemake list with names
                },
                engines={Path(path).stem: Path(path) for path in smk.input.engines},
            ),
            terminal,
            sys.stdout,
        )
