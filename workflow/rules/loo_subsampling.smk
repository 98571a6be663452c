rule simulated:
    output:
        directory("results/datasets/{dataset}.zarr"),
    log:
        "results/datasets/{dataset}.log",
    benchmark:
        "results/datasets/{dataset}.tsv"
    conda:
        "../../envs/pcv.yaml"
    params:
        code=code_of_page("loo_subsampling"),
    shell:
        "python {params.code:q}/simulate.py data {wildcards.dataset} {output} 2>&1 | tee {log}"


# The posteriors of simulated regressions, from sums over their rows: for a million rows in a minute.
rule regression_draws:
    input:
        "results/datasets/{dataset}.zarr",
    output:
        directory("results/loo_subsampling/draws/{dataset}-{model}.zarr"),
    log:
        "results/loo_subsampling/draws/{dataset}-{model}.log",
    benchmark:
        "results/loo_subsampling/draws/{dataset}-{model}.tsv"
    conda:
        "../../envs/pcv.yaml"
    params:
        code=code_of_page("loo_subsampling"),
        draws=draws_of_fit,
    shell:
        "python {params.code:q}/simulate.py draws {input} {wildcards.model} {output}"
        " --draws {params.draws} 2>&1 | tee {log}"


rule loo_subsampling:
    input:
        page_input(loo_subsampling_files.EXPERIMENTS, ["surrogates"]),
    output:
        page=report(
            "results/loo_subsampling/index.html",
            caption="../report/paper.rst",
            category="paper",
            labels={"shows": "the LOO-SS paper's numbers beside ours"},
        ),
        files=loo_subsampling_files.files(CONFIG.experiments),
    log:
        "results/loo_subsampling/loo_subsampling.log",
    benchmark:
        "results/loo_subsampling/loo_subsampling.tsv"
    conda:
        "../../envs/pcv.yaml"
    params:
        config=CONFIG_FILE,
        code=code_of_page("loo_subsampling"),
    shell:
        "python {params.code:q} {params.config} 2>&1 | tee {log}"
