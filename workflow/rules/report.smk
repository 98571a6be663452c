FIGURE = "results/{{experiment}}/figures/{}.svg"


rule report:
    input:
        compare=rules.compare.output,
        diagnostics=models("diagnose"),
    output:
        html="results/{experiment}/report.html",
        difference=report(
            FIGURE.format("difference"), "../report/difference.rst", "{experiment}"
        ),
    log:
        "results/{experiment}/logs/report.log",
    benchmark:
        "results/{experiment}/benchmarks/report.tsv"
    conda:
        "../../envs/pcv.yaml"
    params:
        config=CONFIG_FILE,
        part=part("report"),
    shell:
        "pcv report {params.config} --experiment {wildcards.experiment} 2>&1 | tee {log}"
