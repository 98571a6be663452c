import sys
from pathlib import Path

IS_MODULE = not workflow.modifier.is_main_snakefile()
PAGES = ("paper", "loo_subsampling", "cumulative", "subspace", "nested_rhat")
GIVEN = bool(config)


def asked_for(page):
    """Snakemake reads a workflow before it knows its targets."""
    words = [] if IS_MODULE else sys.argv[1:]
    return any(word == page or word.startswith(f"results/{page}/") for word in words)


PAGE = next(filter(asked_for, PAGES), None)


def default_config():
    """The config if none is named; jobs on other machines use the saved config of their run."""
    if not workflow.is_main_process and Path("results/config.yaml").exists():
        return "results/config.yaml"
    if PAGE and PAGE != "nested_rhat":  # which has no experiments
        return f"config/{PAGE}/{PAGE}.yaml"
    return "config/config.yaml"
