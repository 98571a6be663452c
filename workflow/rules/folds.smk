rule folds:
    input:
        rules.data.output,
    output:
        directory("results/{experiment}/folds.zarr"),
    log:
        "results/{experiment}/logs/folds.log",
    benchmark:
        "results/{experiment}/benchmarks/folds.tsv"
    conda:
        "../../envs/pcv.yaml"
    params:
        config=CONFIG_FILE,
        part=part("folds"),
    shell:
        "pcv folds {params.config} --experiment {wildcards.experiment} 2>&1 | tee {log}"
