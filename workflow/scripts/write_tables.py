"""Write the tables from the records (rule `tables`)."""

from pathlib import Path
from typing import Any

from refill.config import load_claims
from refill.edge import logged
from refill.evidence.measured import read_measured
from refill.proofs.asked_for import refuse_others
from refill.report.machine import allow
from refill.report.proofs import write_table as write_proofs_table
from refill.report.rounds import Expected, arms
from refill.report.rounds import write_tables as write_round_tables
from refill.report.tables import write_tables

if __name__ == "__main__":
    smk: Any = snakemake  # type: ignore[name-defined]  # noqa: F821 - Snakemake puts it here
    with logged(smk.log[0]) as terminal:
        claims, folder = load_claims(), Path(smk.output.optimizers).parent
        records = read_measured(smk.input.records, "refill.optimizer-run/1", Path())
        rounds = read_measured(smk.input.rounds, "refill.round/1", Path())
        proofs = read_measured(smk.input.proofs, "refill.proof/1", Path())
        refuse_others(proofs, dict(smk.params.plan)["proof"], Path())
        expected = Expected(**dict(smk.params.plan)["expected"])
        records = allow(records, dict(smk.params.plan)["machines"])
        write_tables(records, claims, folder, rounds, expected, next(iter(proofs), None))
        write_round_tables(rounds, expected, claims["experiments"]["gateway"], folder)
        write_proofs_table(proofs, folder)
        if rounds and (compared := arms(expected)) is not None:
            print(f"rounds: {compared}: {smk.output.rounds}", file=terminal)
