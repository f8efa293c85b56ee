"""Write the results as a Workflow Run RO-Crate (rule `crate`)."""

from pathlib import Path
from typing import Any

from refill.config import PROJECT
from refill.edge import logged
from refill.evidence.crate import write
from refill.evidence.records import read_json

if __name__ == "__main__":
    smk: Any = snakemake  # type: ignore[name-defined]  # noqa: F821 - Snakemake puts it here
    with logged(smk.log[0]):
        manifest = read_json(Path(smk.input.manifest))
        write(manifest, Path(), PROJECT, Path(smk.output[0]).parent)
