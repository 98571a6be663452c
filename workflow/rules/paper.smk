import os
import sys

HERE = str(Path(workflow.current_basedir).parent)
sys.path.append(HERE)
PAPER_PATH = os.pathsep.join([HERE, *filter(None, [os.environ.get("PYTHONPATH")])])

from paper import files as paper_files


def paper_of_what_is_there():
    """The page says what is missing, and why."""
    if PAPER_ASKED_FOR:
        command = [sys.executable, "-m", "paper", CONFIG_FILE]
        subprocess.run(
            command, env=os.environ | {"PYTHONPATH": PAPER_PATH}, check=False
        )


def paper_input(stages):
    """Artifacts of the paper's experiments, as far as the config has them."""

    def of(wildcards):
        paths = [
            str(layout.path(Path("results"), stage, name, model, batch))
            for name in paper_files.EXPERIMENTS
            if name in CONFIG.experiments
            for stage in stages
            for model in CONFIG.experiments[name].models
            for batch in batches(name, model)
        ]
        return list(dict.fromkeys(paths))

    return of


rule paper:
    input:
        paper_input(["sample", "diagnose", "compare", "report"]),
    output:
        page=report(
            "results/paper/index.html",
            caption="../report/paper.rst",
            category="paper",
            labels={"shows": "the paper's numbers beside ours"},
        ),
        files=paper_files.files(CONFIG.experiments),
    log:
        "results/paper/paper.log",
    benchmark:
        "results/paper/paper.tsv"
    conda:
        "../../envs/pcv.yaml"
    params:
        config=CONFIG_FILE,
    shell:
        "PYTHONPATH='{PAPER_PATH}' python -m paper {params.config} 2>&1 | tee {log}"
