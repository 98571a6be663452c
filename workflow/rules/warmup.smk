rule warmup:
    input:
        data=rules.data.output,
        fit=rules.fit.output,
        folds=rules.folds.output,
        surrogates=surrogates,
        recipe=recipe("warmup"),
    output:
        directory("results/{experiment}/models/{model}/warmup/{batch}.zarr"),
    log:
        "results/{experiment}/logs/warmup-{model}-{batch}.log",
    benchmark:
        "results/{experiment}/benchmarks/warmup-{model}-{batch}.tsv"
    conda:
        "../../envs/pcv.yaml"
    threads: cores_per_model
    resources:
        gpu=GPU,
    params:
        config=config_file,
        part=part("warmup"),
    shell:
        "pcv warmup {params.config} --experiment {wildcards.experiment} --model {wildcards.model}"
        " --batch {wildcards.batch} --cores {threads} 2>&1 | tee {log}"
