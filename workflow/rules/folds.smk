rule folds:
    input:
        data=rules.data.output,
        file=files("folds"),
        recipe=recipe("folds"),
    output:
        directory("results/{experiment}/folds.zarr"),
    log:
        "results/{experiment}/logs/folds.log",
    benchmark:
        "results/{experiment}/benchmarks/folds.tsv"
    conda:
        "../../envs/pcv.yaml"
    params:
        config=config_file,
        part=part("folds"),
    shell:
        "pcv folds {params.config} --experiment {wildcards.experiment} 2>&1 | tee {log}"
