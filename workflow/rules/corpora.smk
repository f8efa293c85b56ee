rule corpus:
    output:
        "results/corpora/{corpus}/corpus.json",
        "results/corpora/{corpus}/vectors.npy",
        "results/corpora/{corpus}/queries.npy",
        "results/corpora/{corpus}/truth_ids.npy",
        "results/corpora/{corpus}/truth_scores.npy",
    log:
        "results/logs/corpora/{corpus}.log",
    conda:
        "../../environment.yml"
    threads: all_cores
    resources:
        machine=1,
    params:
        plan=lambda w: PLANS.corpus(w.corpus),
    script:
        "../scripts/prepare_corpus.py"


CORPUS_RECORD = f"results/corpora/{PLANS.corpus_name}/corpus.json"
