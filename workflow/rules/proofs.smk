# The AOF crash proof: after the rounds, alone on the machine, as it would disturb a measurement and
# be disturbed by one.


rule proof:
    input:
        images=[f"results/images/{name}.json" for name in PLANS.proof_images],
        turn=in_turn("proofs/aof"),
    output:
        record=report(
            "results/proofs/aof.json",
            category="Proofs",
            caption="../report/proof.rst",
        ),
    log:
        "results/logs/proofs/aof.log",
    priority: PROOF
    conda:
        "../../environment.yml"
    threads: all_cores
    resources:
        machine=1,
        mem_mb=3000,
        # The full proof takes under 15 minutes on two cores that nobody else uses.
        runtime=60,
    params:
        plan=PLANS.proof(),
    script:
        "../scripts/run_proof.py"


PROOF_RECORDS = [rules.proof.output.record] if PLANS.proof_images else []
