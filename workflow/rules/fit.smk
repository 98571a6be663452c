rule fit:
    input:
        data=rules.data.output,
        model=files("model"),
        posterior=files("posterior"),
        recipe=recipe("fit"),
    output:
        directory("results/{experiment}/models/{model}/fit.zarr"),
    log:
        "results/{experiment}/logs/fit-{model}.log",
    benchmark:
        "results/{experiment}/benchmarks/fit-{model}.tsv"
    conda:
        "../../envs/pcv.yaml"
    threads: fit_threads
    resources:
        gpu=GPU,
    params:
        config=config_file,
        part=part("fit"),
    shell:
        "pcv fit {params.config} --experiment {wildcards.experiment} --model {wildcards.model}"
        " --cores {threads} 2>&1 | tee {log}"
