# On a cluster (`node_cpus` in the configuration) all rounds run on one node, the one that the scheduler
# gave to `pick_node`; a profile reads the name from their input `node`. Elsewhere there is no such
# input, and this rule has no part in anything.
ROUNDS_NODE = "results/cluster/rounds.node" if PLANS.node_cpus else []


rule pick_node:
    input:
        turn=in_turn("cluster/rounds"),
    output:
        "results/cluster/rounds.node",
    log:
        "results/logs/cluster/rounds.log",
    priority: BEFORE_ALL_MEASUREMENTS
    conda:
        "../../environment.yml"
    threads: all_cores
    resources:
        mem_mb=1000,
        runtime=10,
    script:
        "../scripts/pick_node.py"
