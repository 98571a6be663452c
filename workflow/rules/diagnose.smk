rule diagnose:
    input:
        folds=rules.folds.output,
        fit=rules.fit.output,
        surrogates=surrogates,
        sample=all_samples,
        recipe=recipe("diagnose"),
    output:
        directory("results/{experiment}/models/{model}/diagnostics.zarr"),
    log:
        "results/{experiment}/logs/diagnose-{model}.log",
    benchmark:
        "results/{experiment}/benchmarks/diagnose-{model}.tsv"
    conda:
        "../../envs/pcv.yaml"
    params:
        config=config_file,
        part=part("diagnose"),
    shell:
        "pcv diagnose {params.config} --experiment {wildcards.experiment}"
        " --model {wildcards.model} 2>&1 | tee {log}"
