rule sample:
    input:
        data=rules.data.output,
        folds=rules.folds.output,
        surrogates=surrogates,
        warmup=rules.warmup.output,
        scores=files("scores"),
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
        config=config_file,
        part=part("sample"),
    shell:
        "pcv sample {params.config} --experiment {wildcards.experiment} --model {wildcards.model}"
        " --batch {wildcards.batch} --cores {threads} 2>&1 | tee {log}"


rule plan:
    input:
        folds=rules.folds.output,
        samples=samples_before,
        recipe=recipe("plan"),
    output:
        directory("results/{experiment}/plan/{round}.zarr"),
    log:
        "results/{experiment}/logs/plan-round-{round}.log",
    benchmark:
        "results/{experiment}/benchmarks/plan-round-{round}.tsv"
    conda:
        "../../envs/pcv.yaml"
    params:
        config=config_file,
        part=part("plan"),
    shell:
        "pcv plan {params.config} --experiment {wildcards.experiment}"
        " --round {wildcards.round} 2>&1 | tee {log}"


rule sample_more:
    input:
        data=rules.data.output,
        folds=rules.folds.output,
        surrogates=surrogates,
        warmup=rules.warmup.output,
        plan=rules.plan.output,
        before=sample_before,
        scores=files("scores"),
        recipe=recipe("sample"),
    output:
        directory("results/{experiment}/models/{model}/sample/{round}/{batch}.zarr"),
    log:
        "results/{experiment}/logs/sample-{model}-{batch}-round-{round}.log",
    benchmark:
        "results/{experiment}/benchmarks/sample-{model}-{batch}-round-{round}.tsv"
    conda:
        "../../envs/pcv.yaml"
    threads: cores_per_model
    resources:
        gpu=GPU,
    params:
        config=config_file,
        part=part("sample"),
    shell:
        "pcv sample {params.config} --experiment {wildcards.experiment} --model {wildcards.model}"
        " --batch {wildcards.batch} --round {wildcards.round} --cores {threads} 2>&1 | tee {log}"
