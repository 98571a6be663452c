rule subspace:
    input:
        page_input(subspace_files.EXPERIMENTS, ["diagnose"]),
    output:
        page=report(
            "results/subspace/index.html",
            caption="../report/paper.rst",
            category="paper",
            labels={
                "shows": "the numbers of Tarek, Francis and Panagiotelis beside ours"
            },
        ),
        files=subspace_files.files(CONFIG.experiments),
    log:
        "results/subspace/subspace.log",
    benchmark:
        "results/subspace/subspace.tsv"
    conda:
        "../../envs/pcv.yaml"
    params:
        config=CONFIG_FILE,
        code=code_of_page("subspace"),
    shell:
        "python {params.code:q} {params.config} 2>&1 | tee {log}"
