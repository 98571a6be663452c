import sys

IS_MODULE = not workflow.modifier.is_main_snakefile()
# Snakemake reads a workflow before it knows its targets.
PAPER_ASKED_FOR = not IS_MODULE and any(
    word == "paper" or word.startswith("results/paper/") for word in sys.argv[1:]
)


def default_config():
    """The config if none is named; jobs on other machines use the saved config of their run."""
    if not workflow.is_main_process:
        return "results/config.yaml"
    return "config/paper/paper.yaml" if PAPER_ASKED_FOR else "config/config.yaml"
