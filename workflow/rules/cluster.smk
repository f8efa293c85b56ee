# On a cluster (`node_cpus` in the configuration) all rounds run on one node, the one that the scheduler
# gave to `pick_node`; a profile reads the name from their input `node`. Elsewhere there is no such
# input, and this rule has no part in anything.
from refill.rounds_node import waits

ROUNDS_NODE = "results/cluster/rounds.node" if PLANS.node_cpus else []

SAID = set()


def in_session(wildcards, input):
    """One round at a time. Says so, once, when their node takes no jobs: Slurm would wait in silence."""
    if workflow.is_main_process and input.node and Path(input.node).exists():
        with as_workflow_error():
            line = waits(Path(input.node))
        if line and line not in SAID:
            SAID.add(line)
            print(line, file=sys.stderr, flush=True)
    return 1


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
