rule image:
    output:
        record="results/images/{image}.json",
        archive="results/images/{image}.pyz",
    log:
        "results/logs/images/{image}.log",
    wildcard_constraints:
        image="|".join(PLANS.images) or "none",
    priority: BEFORE_ALL_MEASUREMENTS
    localrule: True
    conda:
        "../../environment.yml"
    params:
        plan=lambda w: PLANS.image(w.image),
    script:
        "../scripts/build_image.py"


# What an optimizer run is made with: a change of the gateway is no reason to run one again.
QDRANT_RECORDS = [f"results/images/{name}.json" for name in PLANS.qdrant_images]
IMAGE_RECORDS = [f"results/images/{name}.json" for name in PLANS.images]
