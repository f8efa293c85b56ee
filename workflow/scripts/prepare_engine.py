"""Make a native engine ready to be started and record what it is (rule `native_engine`)."""

import sys
from pathlib import Path
from typing import Any

from refill.edge import logged
from refill.engines.installations import home_of, prepare, prepare_image
from refill.evidence.turns import preparing
from refill.processes import Watch

if __name__ == "__main__":
    smk: Any = snakemake  # type: ignore[name-defined]  # noqa: F821 - Snakemake puts it here
    # Watched, so that a client that downloads ends with this job and leaves nothing.
    with logged(smk.log[0]) as terminal, Watch():
        plan = dict(smk.params.plan)
        told = (plan["code"], plan["attempt"])
        file = Path(smk.output.record)
        # No output: Snakemake deletes those before a job, and rounds may run from it.
        home = home_of(file)
        with preparing(Path(), f"engines/{plan['name']}") as check:
            if "pull" in plan:
                host = plan["docker"]["host"]
                record = prepare_image(
                    Path(),
                    plan["name"],
                    plan["pull"],
                    host,
                    home,
                    file,
                    *told,
                    check,
                )
            else:
                spec, settings = plan["spec"], plan["settings"]
                record = prepare(Path(), plan["name"], spec, settings, home, file, *told, check)
        said = record["status"]
        if said != "at hand":
            next_time = "; the next run tries again" if record["again"] else ""
            said += f": {record['why']}{next_time}; rounds that measured it already are kept"
        for stream in (terminal, sys.stdout):
            print(f"{plan['name']}: {said}", file=stream)
