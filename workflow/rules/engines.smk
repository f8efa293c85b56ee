# Native engines that the rounds measure beside the gateway: found or put together, and recorded. One
# that is not at hand has a record that says why, so that everything else can go on, and is tried
# again by the next run when the reason may have passed. A checkpoint: only when it is known what is
# at hand Snakemake looks which rounds that changes.


checkpoint native_engine:
    input:
        turn=in_turn("engines/{engine}"),
    output:
        record=ENGINE_RECORD.format("{engine}"),
    log:
        "results/logs/engines/{engine}.log",
    wildcard_constraints:
        engine="elasticsearch|opensearch",
    priority: BEFORE_ALL_MEASUREMENTS
    conda:
        "../../environment.yml"
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        plan=planned(lambda w: PLANS.native_engine(w.engine)),
    script:
        "../scripts/prepare_engine.py"


ENGINE_RECORDS = [ENGINE_RECORD.format(name) for name in PLANS.native_engines]
