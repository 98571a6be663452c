rule compare:
    input:
        folds=rules.folds.output,
        diagnostics=models("diagnose"),
        recipe=recipe("compare"),
    output:
        zarr=directory("results/{experiment}/comparison.zarr"),
        csv=report(
            "results/{experiment}/comparison.csv",
            caption="../report/comparison.rst",
            category="{experiment}",
            labels={"shows": "comparison"},
        ),
        scores="results/{experiment}/scores.csv",
    log:
        "results/{experiment}/logs/compare.log",
    benchmark:
        "results/{experiment}/benchmarks/compare.tsv"
    wildcard_constraints:
        experiment=any_of(BY_FOLD),
    conda:
        "../../envs/pcv.yaml"
    params:
        config=config_file,
        part=part("compare"),
    # The table goes to the log only; `print_tables` shows it at the end.
    shell:
        "pcv compare {params.config} --experiment {wildcards.experiment} 2>&1 >> {log} | tee -a {log}"
