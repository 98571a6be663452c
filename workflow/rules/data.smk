rule download:
    output:
        "results/datasets/{dataset}.csv",
    log:
        "results/datasets/{dataset}.log",
    benchmark:
        "results/datasets/{dataset}.tsv"
    conda:
        "../../envs/pcv.yaml"
    shell:
        "pcv download {wildcards.dataset} 2>&1 | tee {log}"


rule data:
    input:
        data=files("table"),
        recipe=recipe("data"),
    output:
        directory("results/{experiment}/data.zarr"),
    log:
        "results/{experiment}/logs/data.log",
    benchmark:
        "results/{experiment}/benchmarks/data.tsv"
    conda:
        "../../envs/pcv.yaml"
    params:
        config=config_file,
        part=part("data"),
    shell:
        "pcv data {params.config} --experiment {wildcards.experiment} 2>&1 | tee {log}"
