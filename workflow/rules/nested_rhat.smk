rule superchains:
    output:
        directory("results/nested_rhat/runs/{target}.zarr"),
    log:
        "results/nested_rhat/runs/{target}.log",
    benchmark:
        "results/nested_rhat/runs/{target}.tsv"
    wildcard_constraints:
        target="|".join(RUNS),
    conda:
        "../../envs/pcv.yaml"
    threads: cores_per_target
    resources:
        gpu=GPU,
    params:
        settings=settings_of,
        file=SETTINGS_FILE,
        code=code_of_page("nested_rhat"),
    shell:
        "python {params.code:q}/run.py {params.file} {wildcards.target} {output}"
        " --cores {threads} 2>&1 | tee {log}"


rule nested_rhat:
    input:
        expand(rules.superchains.output, target=RUNS),
    output:
        page=report(
            "results/nested_rhat/index.html",
            caption="../report/paper.rst",
            category="paper",
            labels={"shows": "the figures of nested R-hat's paper"},
        ),
        files=nested_rhat_files.files(VARIED),
    log:
        "results/nested_rhat/nested_rhat.log",
    benchmark:
        "results/nested_rhat/nested_rhat.tsv"
    conda:
        "../../envs/pcv.yaml"
    params:
        file=SETTINGS_FILE,
        code=code_of_page("nested_rhat"),
    shell:
        "python {params.code:q} {params.file} 2>&1 | tee {log}"
