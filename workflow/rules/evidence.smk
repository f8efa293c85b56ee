# From records to tables, the manifest, and the report that people read.


rule tables:
    input:
        records=OPTIMIZER_RECORDS,
        rounds=ROUND_RECORDS,
    output:
        rounds=report(
            "results/tables/rounds.csv",
            category="Tables",
            caption="../report/rounds_table.rst",
        ),
        aof=report(
            "results/tables/aof.csv",
            category="Tables",
            caption="../report/aof_table.rst",
        ),
        optimizers=report(
            "results/tables/optimizers.csv",
            category="Tables",
            caption="../report/optimizers_table.rst",
        ),
        phases=report(
            "results/tables/optimizer_phases.csv",
            category="Tables",
            caption="../report/phases_table.rst",
        ),
        claims=report(
            "results/tables/claims.csv",
            category="Tables",
            caption="../report/claims_table.rst",
        ),
    log:
        "results/logs/tables.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        plan=PLANS.tables(),
    script:
        "../scripts/write_tables.py"


rule manifest:
    input:
        records=OPTIMIZER_RECORDS,
        rounds=ROUND_RECORDS,
        files=[*OPTIMIZER_TABLES, *ROUND_FILES],
        images=IMAGE_RECORDS,
        engines=ENGINE_RECORDS,
        corpora=[CORPUS_RECORD, *DOCUMENT_RECORDS],
        tables=rules.tables.output,
    output:
        "results/manifest.json",
    log:
        "results/logs/manifest.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        plan=PLANS.manifest(),
    script:
        "../scripts/write_manifest.py"


rule report:
    input:
        records=OPTIMIZER_RECORDS,
        rounds=ROUND_RECORDS,
        files=[*OPTIMIZER_TABLES, *ROUND_FILES],
        tables=rules.tables.output,
        manifest="results/manifest.json",
    output:
        report(
            "results/report.html",
            category="Report",
            caption="../report/report.rst",
        ),
    log:
        "results/logs/report.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        plan=PLANS.report(),
    script:
        "../scripts/write_report.py"
