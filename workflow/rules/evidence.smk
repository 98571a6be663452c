# Only with `scheme: cumulative`, whose comparison and report have files of their own.
rule evidence:
    input:
        data=rules.data.output,
        fit=rules.fit.output,
        folds=rules.folds.output,
        recipe=recipe("evidence"),
    output:
        directory("results/{experiment}/models/{model}/evidence.zarr"),
    log:
        "results/{experiment}/logs/evidence-{model}.log",
    benchmark:
        "results/{experiment}/benchmarks/evidence-{model}.tsv"
    conda:
        "../../envs/pcv.yaml"
    threads: cores_per_model
    resources:
        gpu=GPU,
    params:
        config=config_file,
        part=part("evidence"),
    shell:
        "pcv evidence {params.config} --experiment {wildcards.experiment}"
        " --model {wildcards.model} --cores {threads} 2>&1 | tee {log}"


rule compare_cumulative:
    input:
        folds=rules.folds.output,
        evidence=models("evidence"),
        recipe=recipe("compare"),
    output:
        zarr=directory("results/{experiment}/comparison.zarr"),
        csv=report(
            "results/{experiment}/comparison.csv",
            caption="../report/cumulative.rst",
            category="{experiment}",
            labels={"shows": "comparison"},
        ),
        sizes="results/{experiment}/cumulative.csv",
    log:
        "results/{experiment}/logs/compare.log",
    benchmark:
        "results/{experiment}/benchmarks/compare.tsv"
    wildcard_constraints:
        experiment=any_of(CUMULATIVE),
    conda:
        "../../envs/pcv.yaml"
    params:
        config=config_file,
        part=part("compare"),
    shell:
        "pcv compare {params.config} --experiment {wildcards.experiment} 2>&1 >> {log} | tee -a {log}"


rule report_cumulative:
    input:
        compare=rules.compare_cumulative.output,
        evidence=models("evidence"),
        recipe=recipe("report"),
    output:
        html=report(
            "results/{experiment}/report.html",
            caption="../report/page.rst",
            category="{experiment}",
            labels={"shows": "the whole report"},
        ),
        svg=report(
            FIGURE.format(name="cumulative", suffix="svg"),
            caption="../report/cumulative.rst",
            category="{experiment}",
            labels={"shows": "cumulative"},
        ),
        png=FIGURE.format(name="cumulative", suffix="png"),
    log:
        "results/{experiment}/logs/report.log",
    benchmark:
        "results/{experiment}/benchmarks/report.tsv"
    wildcard_constraints:
        experiment=any_of(CUMULATIVE),
    conda:
        "../../envs/pcv.yaml"
    params:
        config=config_file,
        part=part("report"),
    shell:
        "pcv report {params.config} --experiment {wildcards.experiment} 2>&1 | tee {log}"
