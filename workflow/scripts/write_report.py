"""Write the report that people read (rule `report`)."""

from pathlib import Path
from typing import Any

from refill.config import load_claims
from refill.edge import logged
from refill.evidence.attempts import list_attempts
from refill.evidence.measured import read_measured
from refill.evidence.records import read_json
from refill.proofs.asked_for import refuse_others
from refill.report.machine import allow
from refill.report.page import write
from refill.report.rounds import Expected

if __name__ == "__main__":
    smk: Any = snakemake  # type: ignore[name-defined]  # noqa: F821 - Snakemake puts it here
    with logged(smk.log[0]) as terminal:
        records = read_measured(smk.input.records, "refill.optimizer-run/1", Path())
        proofs = read_measured(smk.input.proofs, "refill.proof/1", Path())
        refuse_others(proofs, dict(smk.params.plan)["proof"], Path())
        write(
            Path(),
            allow(records, dict(smk.params.plan)["machines"]),
            load_claims(),
            Path(smk.output[0]),
            list_attempts(Path()),
            read_json(Path(smk.input.manifest)),
            read_measured(smk.input.rounds, "refill.round/1", Path()),
            Expected(**dict(smk.params.plan)["expected"]),
            proofs,
        )
        print(f"report: {smk.output[0]}", file=terminal)
