from nested_rhat import settings as nested_rhat_settings

SETTINGS_FILE = "results/nested_rhat/settings.yaml"
DEFAULT_SETTINGS = PACKAGES.parent / "config/nested_rhat/nested_rhat.yaml"
try:
    if SHORT_CHAINS is not None:
        SETTINGS = nested_rhat_settings.parse({"nested_rhat": SHORT_CHAINS}, "config")
    elif PAGE == "nested_rhat" and GIVEN:
        raise PcvError(
            "config: nested_rhat: missing; add it, as in config/nested_rhat/quick.yaml"
        )
    else:
        SETTINGS = nested_rhat_settings.load(DEFAULT_SETTINGS)
except PcvError as error:
    sys.exit("\n".join(f"error: {line}" for line in str(error).splitlines()))
RUNS = [nested_rhat_files.ILLUSTRATED, *SETTINGS.targets]
VARIED = any(len(runs.superchains) > 1 for runs in SETTINGS.targets.values())


def save_settings():
    """Write the settings, for the jobs."""
    text = yaml.safe_dump({"nested_rhat": SETTINGS.model_dump()}, sort_keys=False)
    Path(SETTINGS_FILE).parent.mkdir(parents=True, exist_ok=True)
    Path(SETTINGS_FILE).write_text(text)


def settings_of(wildcards):
    return nested_rhat_settings.part(SETTINGS, wildcards.target)


rule superchains:
    output:
        directory("results/nested_rhat/runs/{target}.zarr"),
    log:
        "results/nested_rhat/runs/{target}.log",
    benchmark:
        "results/nested_rhat/runs/{target}.tsv"
    wildcard_constraints:
        target="|".join(RUNS),
    conda:
        "../../envs/pcv.yaml"
    threads: max(1, workflow.cores // len(RUNS)) if workflow.local_exec else 4
    resources:
        gpu=GPU,
    params:
        settings=settings_of,
        file=SETTINGS_FILE,
        code=code_of_page("nested_rhat"),
    shell:
        "python {params.code:q}/run.py {params.file} {wildcards.target} {output}"
        " --cores {threads} 2>&1 | tee {log}"


rule nested_rhat:
    input:
        expand(rules.superchains.output, target=RUNS),
    output:
        page=report(
            "results/nested_rhat/index.html",
            caption="../report/paper.rst",
            category="paper",
            labels={"shows": "the figures of nested R-hat's paper"},
        ),
        files=nested_rhat_files.files(VARIED),
    log:
        "results/nested_rhat/nested_rhat.log",
    benchmark:
        "results/nested_rhat/nested_rhat.tsv"
    conda:
        "../../envs/pcv.yaml"
    params:
        file=SETTINGS_FILE,
        code=code_of_page("nested_rhat"),
    shell:
        "python {params.code:q} {params.file} 2>&1 | tee {log}"
