rule compare:
    input:
        folds=rules.folds.output,
        diagnostics=models("diagnose"),
    output:
        zarr=directory("results/{experiment}/comparison.zarr"),
        csv="results/{experiment}/comparison.csv",
    log:
        "results/{experiment}/logs/compare.log",
    benchmark:
        "results/{experiment}/benchmarks/compare.tsv"
    conda:
        "../../envs/pcv.yaml"
    params:
        config=CONFIG_FILE,
        part=part("compare"),
    shell:
        "pcv compare {params.config} --experiment {wildcards.experiment} 2>&1 | tee {log}"
