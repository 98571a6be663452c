rule sample:
    input:
        data=rules.data.output,
        folds=rules.folds.output,
        warmup=rules.warmup.output,
        scores=score_files,
        recipe=recipe("sample"),
    output:
        directory("results/{experiment}/models/{model}/sample/{batch}.zarr"),
    log:
        "results/{experiment}/logs/sample-{model}-{batch}.log",
    benchmark:
        "results/{experiment}/benchmarks/sample-{model}-{batch}.tsv"
    conda:
        "../../envs/pcv.yaml"
    threads: cores_per_model
    resources:
        gpu=GPU,
    params:
        config=CONFIG_FILE,
        part=part("sample"),
    shell:
        "pcv sample {params.config} --experiment {wildcards.experiment} --model {wildcards.model}"
        " --batch {wildcards.batch} --cores {threads} 2>&1 | tee {log}"
