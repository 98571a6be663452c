import sys

IS_MODULE = not workflow.modifier.is_main_snakefile()
PAGES = ("paper", "loo_subsampling", "cumulative", "subspace", "nested_rhat")
# Snakemake reads a workflow before it knows its targets.
PAGE = next(
    (
        name
        for name in PAGES
        for word in sys.argv[1:]
        if not IS_MODULE and (word == name or word.startswith(f"results/{name}/"))
    ),
    None,
)


def default_config():
    """The config if none is named; jobs on other machines use the saved config of their run."""
    if not workflow.is_main_process:
        return "results/config.yaml"
    if PAGE and PAGE != "nested_rhat":  # which has no experiments
        return f"config/{PAGE}/{PAGE}.yaml"
    return "config/config.yaml"
