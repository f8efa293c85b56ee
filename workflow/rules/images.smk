BUILT_IMAGES = [name for name in PLANS.images if name not in PLANS.containers.pulled]


rule image:
    output:
        record="results/images/{image}.json",
        # An image of a container stays in the daemon, and what is kept here is the log of its build.
        built="results/images/{image}."
        + ("build.log" if PLANS.containers.used else "pyz"),
    log:
        "results/logs/images/{image}.log",
    wildcard_constraints:
        image=one_of(BUILT_IMAGES),
    priority: BEFORE_ALL_MEASUREMENTS
    localrule: True
    conda:
        "../../environment.yml"
    params:
        plan=planned(lambda w: PLANS.image(w.image)),
    script:
        "../scripts/build_image.py"


use rule image as pulled_image with:
    output:
        record="results/images/{image}.json",
    wildcard_constraints:
        image=one_of(PLANS.containers.pulled),


# What an optimizer run is made with: a change of the gateway is no reason to run one again.
QDRANT_RECORDS = [f"results/images/{name}.json" for name in PLANS.qdrant_images]
IMAGE_RECORDS = [f"results/images/{name}.json" for name in PLANS.images]
