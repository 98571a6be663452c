# Only with `folds: {exact: auto}` or psis, and with `scheme: subsample`.
rule surrogates:
    input:
        data=rules.data.output,
        fit=rules.fit.output,
        folds=rules.folds.output,
        recipe=recipe("surrogates"),
    output:
        directory("results/{experiment}/models/{model}/surrogates.zarr"),
    log:
        "results/{experiment}/logs/surrogates-{model}.log",
    benchmark:
        "results/{experiment}/benchmarks/surrogates-{model}.tsv"
    conda:
        "../../envs/pcv.yaml"
    threads: cores_per_model
    resources:
        gpu=GPU,
    params:
        config=config_file,
        part=part("surrogates"),
    shell:
        "pcv surrogates {params.config} --experiment {wildcards.experiment}"
        " --model {wildcards.model} --cores {threads} 2>&1 | tee {log}"


rule subsample:
    input:
        folds=rules.folds.output,
        surrogates=models("surrogates"),
        recipe=recipe("subsample"),
    output:
        directory("results/{experiment}/subsample.zarr"),
    log:
        "results/{experiment}/logs/subsample.log",
    benchmark:
        "results/{experiment}/benchmarks/subsample.tsv"
    conda:
        "../../envs/pcv.yaml"
    params:
        config=config_file,
        part=part("subsample"),
    shell:
        "pcv subsample {params.config} --experiment {wildcards.experiment} 2>&1 | tee {log}"
