"""Count the false verdicts of an A/A run (rule `false_verdicts`)."""

from pathlib import Path
from typing import Any

from refill.config import load_claims
from refill.edge import logged
from refill.evidence.measured import read_measured
from refill.report.aa import aa_table, sentence
from refill.report.files import write_csv
from refill.report.rounds import Expected

if __name__ == "__main__":
    smk: Any = snakemake  # type: ignore[name-defined]  # noqa: F821 - Snakemake puts it here
    with logged(smk.log[0]) as terminal:
        rounds = read_measured(smk.input.rounds, "refill.round/1", Path())
        expected = Expected(**dict(smk.params.plan)["expected"])
        table = aa_table(rounds, expected, load_claims()["experiments"]["gateway"])
        write_csv(table, Path(smk.output[0]))
        print(f"{sentence(table)}: {smk.output[0]}", file=terminal)
