import sys

PAPER = Path(workflow.current_basedir).resolve().parent / "paper"
sys.path.append(str(PAPER.parent))

from paper import files as paper_files


def paper_of_what_is_there():
    """Make the page after an error, with what is missing and why."""
    if PAPER_ASKED_FOR:
        subprocess.run([sys.executable, PAPER, CONFIG_FILE], check=False)


def paper_input(stages):
    """Artifacts of those of the paper's experiments that the config has."""

    def of(wildcards):
        needed = [
            str(graph.path(Path("results"), stage, name, model, batch))
            for name in paper_files.EXPERIMENTS
            if name in CONFIG.experiments
            for stage in stages
            for model in CONFIG.experiments[name].models
            for batch in batches(name, model)
        ]
        return list(dict.fromkeys(needed))

    return of
