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
        plan = dict(smk.params.plan)
        # In the order in which they are to be measured.
        asked = [*smk.input.rounds, *smk.input.get("proofs", []), *smk.input.records]
        manifest = gather(
            PROJECT,
            out.parent,
            plan["config"],
            snakemake_command(),
            (),
            asked,
            plan["written"],
            plan["again_for"],
        )
        write_json(out, manifest)
