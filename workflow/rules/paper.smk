rule paper:
    input:
        page_input(paper_files.EXPERIMENTS, ["sample", "diagnose", "compare", "report"]),
    output:
        page=report(
            "results/paper/index.html",
            caption="../report/paper.rst",
            category="paper",
            labels={"shows": "the paper's numbers beside ours"},
        ),
        files=paper_files.files(CONFIG.experiments),
    log:
        "results/paper/paper.log",
    benchmark:
        "results/paper/paper.tsv"
    conda:
        "../../envs/pcv.yaml"
    params:
        config=CONFIG_FILE,
        code=code_of_page("paper"),
    shell:
        "python {params.code:q} {params.config} 2>&1 | tee {log}"
