rule image:
    output:
        record="results/images/{image}.json",
        archive="results/images/{image}.pyz",
    log:
        "results/logs/images/{image}.log",
    wildcard_constraints:
        image="|".join(PLANS.images) or "none",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        plan=lambda w: PLANS.image(w.image),
    script:
        "../scripts/build_image.py"


IMAGE_RECORDS = [f"results/images/{name}.json" for name in PLANS.images]
