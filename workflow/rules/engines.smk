# Native engines that the rounds measure beside the gateway: found or put together, and recorded. One
# that is not at hand has a record that says why, so that everything else can go on.


rule native_engine:
    input:
        turn=in_turn("engines/{engine}"),
    output:
        record="results/engines/{engine}.json",
        home=directory("results/engines/{engine}/home"),
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
        plan=lambda w: PLANS.native_engine(w.engine),
    script:
        "../scripts/prepare_engine.py"


ENGINE_RECORDS = [f"results/engines/{name}.json" for name in PLANS.native_engines]
