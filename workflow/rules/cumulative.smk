rule cumulative:
    input:
        page_input(cumulative_files.EXPERIMENTS, ["evidence"]),
    output:
        page=report(
            "results/cumulative/index.html",
            caption="../report/paper.rst",
            category="paper",
            labels={"shows": "the numbers of Fong and Holmes beside ours"},
        ),
        files=cumulative_files.files(CONFIG.experiments),
    log:
        "results/cumulative/cumulative.log",
    benchmark:
        "results/cumulative/cumulative.tsv"
    conda:
        "../../envs/pcv.yaml"
    params:
        config=CONFIG_FILE,
        code=code_of_page("cumulative"),
    shell:
        "python {params.code:q} {params.config} 2>&1 | tee {log}"
