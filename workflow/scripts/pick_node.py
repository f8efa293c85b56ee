"""Choose the node of all rounds: the one that the scheduler gave this job (rule `pick_node`)."""

from pathlib import Path
from typing import Any

from refill.edge import logged
from refill.evidence.turns import preparing
from refill.rounds_node import write_node

if __name__ == "__main__":
    smk: Any = snakemake  # type: ignore[name-defined]  # noqa: F821 - Snakemake puts it here
    with logged(smk.log[0]) as terminal:
        with preparing(Path(), "cluster/rounds") as check:
            node = write_node(Path(smk.output[0]), check)
        print(f"pick_node: the rounds will run on {node}", file=terminal)
