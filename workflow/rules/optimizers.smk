# The second experiment: one target for each configuration and repeat. A run has all cores, the
# machine resource, and a lock on the machine; priorities keep the order of the configuration.


rule optimizer:
    input:
        corpus=CORPUS_RECORD,
        images=QDRANT_RECORDS,
        turn=in_turn("optimizers/{id}/{repeat}"),
    output:
        record=report(
            "results/optimizers/{id}/{repeat}.json",
            category="Optimizer runs",
            caption="../report/optimizer.rst",
        ),
        ledger="results/optimizers/{id}/{repeat}.parquet",
        polls="results/optimizers/{id}/{repeat}.polls.parquet",
    log:
        "results/logs/optimizers/{id}-{repeat}.log",
    wildcard_constraints:
        id="|".join(PLANS.optimizer_ids),
        repeat=r"[1-9][0-9]*",
    priority: lambda w: PLANS.optimizer_priority(w.id, int(w.repeat))
    conda:
        "../../environment.yml"
    threads: all_cores
    resources:
        machine=1,
        mem_mb=PLANS.optimizer_needs.mem_mb,
        runtime=PLANS.optimizer_needs.runtime,
    params:
        plan=planned(lambda w: PLANS.optimizer(w.id, int(w.repeat))),
    script:
        "../scripts/run_optimizer.py"


OPTIMIZER_RECORDS = [
    f"results/optimizers/{id}/{repeat}.json" for id, repeat in PLANS.optimizer_runs
]
OPTIMIZER_TABLES = [
    f"results/optimizers/{id}/{repeat}.{table}"
    for id, repeat in PLANS.optimizer_runs
    for table in ("parquet", "polls.parquet")
]
