"""Write the report that people read (rule `report`)."""

from pathlib import Path
from typing import Any

from refill.config import load_claims
from refill.edge import logged
from refill.evidence.attempts import list_attempts
from refill.evidence.records import read_json
from refill.report.page import write
from refill.report.rounds import Expected

if __name__ == "__main__":
    smk: Any = snakemake  # type: ignore[name-defined]  # noqa: F821 - Snakemake puts it here
    with logged(smk.log[0]) as terminal:
        write(
            Path(),
            [read_json(Path(path), "refill.optimizer-run/1") for path in smk.input.records],
            load_claims(),
            Path(smk.output[0]),
            list_attempts(Path()),
            read_json(Path(smk.input.manifest)),
            [read_json(Path(path), "refill.round/1") for path in smk.input.rounds],
            Expected(**dict(smk.params.plan)["expected"]),
            [read_json(Path(path), "refill.proof/1") for path in smk.input.proofs],
        )
        print(f"report: {smk.output[0]}", file=terminal)
