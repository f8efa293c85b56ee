"""Gather the manifest of everything that was produced (rule `manifest`)."""

from pathlib import Path
from typing import Any

from refill.config import PROJECT
from refill.edge import logged
from refill.evidence.manifest import gather
from refill.evidence.records import write_json
from refill.processes import snakemake_command

if __name__ == "__main__":
    smk: Any = snakemake  # type: ignore[name-defined]  # noqa: F821 - Snakemake puts it here
    with logged(smk.log[0]):
        out = Path(smk.output[0])
        config = dict(smk.params.plan)["config"]
        asked = [*smk.input.records, *smk.input.rounds, *smk.input.proofs]
        write_json(out, gather(PROJECT, out.parent, config, snakemake_command(), asked=asked))
