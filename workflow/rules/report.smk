FIGURE = "results/{{experiment}}/figures/{name}.{suffix}"


rule report:
    input:
        compare=rules.compare.output,
        diagnostics=models("diagnose"),
        recipe=recipe("report"),
    output:
        html=report(
            "results/{experiment}/report.html",
            caption="../report/page.rst",
            category="{experiment}",
            labels={"shows": "the whole report"},
        ),
        svg=[
            report(
                FIGURE.format(name=name, suffix="svg"),
                caption=f"../report/{name}.rst",
                category="{experiment}",
                labels={"shows": name.replace("_", " ")},
            )
            for name in graph.FIGURES
        ],
        png=[FIGURE.format(name=name, suffix="png") for name in graph.FIGURES],
    log:
        "results/{experiment}/logs/report.log",
    benchmark:
        "results/{experiment}/benchmarks/report.tsv"
    wildcard_constraints:
        experiment=any_of(BY_FOLD),
    conda:
        "../../envs/pcv.yaml"
    params:
        config=config_file,
        part=part("report"),
    shell:
        "pcv report {params.config} --experiment {wildcards.experiment} 2>&1 | tee {log}"
