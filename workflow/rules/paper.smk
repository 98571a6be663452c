rule paper:
    input:
        paper_input(["sample", "diagnose", "compare", "report"]),
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
        # Relative, so that moving the clone does not rerun the rule.
        paper=PAPER.relative_to(Path.cwd(), walk_up=True),
    shell:
        "python {params.paper:q} {params.config} 2>&1 | tee {log}"
