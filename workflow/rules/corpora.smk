rule corpus:
    input:
        turn=in_turn("corpora/{corpus}"),
    output:
        "results/corpora/{corpus}/corpus.json",
        "results/corpora/{corpus}/vectors.npy",
        "results/corpora/{corpus}/queries.npy",
        "results/corpora/{corpus}/truth_ids.npy",
        "results/corpora/{corpus}/truth_scores.npy",
    log:
        "results/logs/corpora/{corpus}.log",
    wildcard_constraints:
        corpus=one_of(PLANS.vector_corpora),
    priority: BEFORE_ALL_MEASUREMENTS
    conda:
        "../../environment.yml"
    threads: all_cores
    resources:
        machine=1,
        mem_mb=PLANS.corpus_needs.mem_mb,
        runtime=PLANS.corpus_needs.runtime,
    params:
        plan=planned(lambda w: PLANS.corpus(w.corpus)),
        size=lambda w: PLANS.corpus_size(w.corpus),
    message:
        "Corpus {wildcards.corpus}: {params.size}"
    script:
        "../scripts/prepare_corpus.py"


rule documents:
    input:
        turn=in_turn("corpora/{corpus}"),
    output:
        "results/corpora/{corpus}/corpus.json",
        "results/corpora/{corpus}/documents.parquet",
    log:
        "results/logs/corpora/{corpus}.log",
    wildcard_constraints:
        corpus=one_of(PLANS.document_corpora),
    priority: BEFORE_ALL_MEASUREMENTS
    conda:
        "../../environment.yml"
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        plan=planned(lambda w: PLANS.documents(w.corpus)),
    script:
        "../scripts/prepare_documents.py"


CORPUS_RECORD = f"results/corpora/{PLANS.corpus_name}/corpus.json"
DOCUMENT_RECORDS = [
    f"results/corpora/{name}/corpus.json" for name in PLANS.round_corpora
]
