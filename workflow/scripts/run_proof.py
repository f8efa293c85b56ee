"""Run the AOF crash proof (rule `proof`)."""

from pathlib import Path
from typing import IO, Any

from refill.config import ConfigError
from refill.edge import logged
from refill.progress import Progress
from refill.proofs.measure import Files, prove


def main(plan: dict[str, Any], files: Files, terminal: IO[str], log: IO[str]) -> None:
    """Prove, and say in the end what came of it."""
    progress = Progress("proof", terminal, log)
    progress.ended(prove(plan, files, progress), files.record, "holds", "DOES NOT HOLD")


if __name__ == "__main__":
    import sys

    smk: Any = snakemake  # type: ignore[name-defined]  # noqa: F821 - Snakemake puts it here
    with logged(smk.log[0]) as terminal:
        plan = dict(smk.params.plan)
        if plan["form"] == "none":
            raise ConfigError(["proof.form: is none, so there is nothing to prove: set it to full"])
        found = {Path(path).stem: Path(path) for path in smk.input.images}
        images = {name: found[image] for name, image in plan["images"].items()}
        main(plan, Files(Path(), images, Path(smk.output.record)), terminal, sys.stdout)
