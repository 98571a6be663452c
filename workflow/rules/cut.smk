# Only with `cv: {fold_batches: auto}`.
checkpoint cut:
    input:
        data=rules.data.output,
        fit=rules.fit.output,
        folds=rules.folds.output,
        surrogates=surrogates,
        scores=files("scores"),
        recipe=recipe("cut"),
    output:
        directory("results/{experiment}/models/{model}/batches.zarr"),
    log:
        "results/{experiment}/logs/cut-{model}.log",
    benchmark:
        "results/{experiment}/benchmarks/cut-{model}.tsv"
    conda:
        "../../envs/pcv.yaml"
    threads: cores_per_model
    resources:
        gpu=GPU,
    params:
        config=config_file,
        part=part("cut"),
    shell:
        "pcv cut {params.config} --experiment {wildcards.experiment} --model {wildcards.model}"
        " --cores {threads} 2>&1 | tee {log}"
