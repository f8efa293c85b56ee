# From records to tables, the manifest, and the report that people read. Each rule says in a message
# what it makes, as Snakemake would print its hundreds of inputs instead.


rule tables:
    input:
        records=OPTIMIZER_RECORDS,
        rounds=ROUND_RECORDS,
        proofs=PROOF_RECORDS,
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
        proofs=report(
            "results/tables/proofs.csv",
            category="Tables",
            caption="../report/proofs_table.rst",
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
        verdicts=report(
            "results/tables/optimizer_verdicts.csv",
            category="Tables",
            caption="../report/optimizer_verdicts_table.rst",
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
    message:
        "Tables of all records: results/tables/"
    script:
        "../scripts/write_tables.py"


rule manifest:
    input:
        records=OPTIMIZER_RECORDS,
        rounds=ROUND_RECORDS,
        proofs=PROOF_RECORDS,
        files=[*OPTIMIZER_TABLES, *ROUND_FILES],
        images=IMAGE_RECORDS,
        engines=ENGINE_RECORDS,
        corpora=[CORPUS_RECORD, *DOCUMENT_RECORDS],
        tables=[*rules.tables.output, *FALSE_VERDICTS],
    output:
        "results/manifest.json",
    log:
        "results/logs/manifest.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        plan=planned(
            lambda w: PLANS.manifest(
                rules.tables,
                rules.report,
                rules.false_verdicts if PLANS.one_image else None,
            )
        ),
    message:
        "Manifest: every file with its hash, results/manifest.json"
    script:
        "../scripts/write_manifest.py"


rule report:
    input:
        records=OPTIMIZER_RECORDS,
        rounds=ROUND_RECORDS,
        proofs=PROOF_RECORDS,
        files=[*OPTIMIZER_TABLES, *ROUND_FILES],
        tables=rules.tables.output,
        manifest="results/manifest.json",
    output:
        page=report(
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
    message:
        "Report: results/report.html"
    script:
        "../scripts/write_report.py"


rule crate:
    input:
        report="results/report.html",
        manifest="results/manifest.json",
    output:
        "results/ro-crate/ro-crate-metadata.json",
    log:
        "results/logs/crate.log",
    localrule: True
    conda:
        "../../environment.yml"
    params:
        plan=PLANS.crate(),
    message:
        "RO-Crate: results/ro-crate/"
    script:
        "../scripts/write_crate.py"
