"""Make a native engine ready to be started and record what it is (rule `native_engine`)."""

from pathlib import Path
from typing import Any

from refill.edge import logged
from refill.engines.installations import prepare, prepare_image
from refill.evidence.turns import preparing

if __name__ == "__main__":
    smk: Any = snakemake  # type: ignore[name-defined]  # noqa: F821 - Snakemake puts it here
    with logged(smk.log[0]) as terminal:
        plan = dict(smk.params.plan)
        home, file = Path(smk.output.home), Path(smk.output.record)
        with preparing(Path(), f"engines/{plan['name']}"):
            if "pull" in plan:
                host = plan["docker"]["host"]
                record = prepare_image(
                    Path(), plan["name"], plan["pull"], host, home, file, plan["code"]
                )
            else:
                record = prepare(
                    Path(), plan["name"], plan["spec"], plan["settings"], home, file, plan["code"]
                )
        said = record["status"] + (f": {record['why']}" if "why" in record else "")
        print(f"{plan['name']}: {said}", file=terminal)
