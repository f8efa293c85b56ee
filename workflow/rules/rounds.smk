# The first experiment: one target for each round, block after block within each profile, in the
# orders ABBA and BAAB in turn. A round has all cores, the machine resource and a lock on the machine;
# unique priorities keep the order, and all images and the documents are there before the first round
# begins.


rule round_on:
    input:
        corpus=DOCUMENT_RECORDS,
        images=IMAGE_RECORDS,
        node=ROUNDS_NODE,
        # What is at hand is in the plan, so that a try that failed again reruns no round.
        engines=ancient(ENGINE_RECORDS),
        turn=in_turn("rounds/on-main/{image}-{n}"),
    output:
        record=report(
            "results/rounds/on-main/{image}-{n}.json",
            category="Rounds",
            caption="../report/round.rst",
        ),
        ledger="results/rounds/on-main/{image}-{n}.parquet",
        resources="results/rounds/on-main/{image}-{n}.resources.json",
        warm="results/rounds/on-main/{image}-{n}.warm.json",
        cold="results/rounds/on-main/{image}-{n}.cold.json",
    log:
        "results/logs/rounds/on-main/{image}-{n}.log",
    wildcard_constraints:
        image="old|new",
        n=r"[1-9][0-9]*",
    priority: lambda w: PLANS.round_priority("on-main", w.image, int(w.n))
    conda:
        "../../environment.yml"
    threads: all_cores
    resources:
        machine=1,
        session=in_session,
        mem_mb=PLANS.round_needs.mem_mb,
        runtime=PLANS.round_needs.runtime,
    params:
        plan=planned(lambda w: PLANS.round("on-main", w.image, int(w.n))),
    script:
        "../scripts/run_round.py"


# With the cache off nothing is warm, so such a round has no raw profile of warm operations.
use rule round_on as round_off with:
    input:
        corpus=DOCUMENT_RECORDS,
        images=IMAGE_RECORDS,
        node=ROUNDS_NODE,
        engines=ancient(ENGINE_RECORDS),
        turn=in_turn("rounds/off-control/{image}-{n}"),
    output:
        record=report(
            "results/rounds/off-control/{image}-{n}.json",
            category="Rounds",
            caption="../report/round.rst",
        ),
        ledger="results/rounds/off-control/{image}-{n}.parquet",
        resources="results/rounds/off-control/{image}-{n}.resources.json",
        cold="results/rounds/off-control/{image}-{n}.cold.json",
    log:
        "results/logs/rounds/off-control/{image}-{n}.log",
    priority: lambda w: PLANS.round_priority("off-control", w.image, int(w.n))
    params:
        plan=planned(lambda w: PLANS.round("off-control", w.image, int(w.n))),


ROUND_RECORDS = [
    ROUND_RECORD.format(profile=profile, image=image, n=n)
    for profile, image, n in PLANS.rounds
]
ROUND_FILES = [
    f"results/rounds/{profile}/{image}-{n}.{file}"
    for profile, image, n in PLANS.rounds
    for file in PLANS.round_files(profile)
]


# With both arms of one image (config/aa.yaml) every difference is a false one; with two images there
# is nothing to count, and no such target.
if PLANS.one_image:

    rule false_verdicts:
        input:
            rounds=ROUND_RECORDS,
        output:
            table="results/tables/aa.csv",
        log:
            "results/logs/aa.log",
        localrule: True
        conda:
            "../../environment.yml"
        params:
            plan=PLANS.false_verdicts(),
        script:
            "../scripts/count_false_verdicts.py"


FALSE_VERDICTS = [rules.false_verdicts.output.table] if PLANS.one_image else []
