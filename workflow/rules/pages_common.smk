import sys
from contextlib import suppress

PACKAGES = Path(workflow.current_basedir).resolve().parent
sys.path.append(str(PACKAGES))

from cumulative import files as cumulative_files
from loo_subsampling import files as loo_subsampling_files
from nested_rhat import files as nested_rhat_files
from nested_rhat import settings as nested_rhat_settings
from paper import files as paper_files
from subspace import files as subspace_files


def code_of_page(name):
    """The folder of a page's code, relative, so that moving the clone does not rerun its rule."""
    return (PACKAGES / name).relative_to(Path.cwd(), walk_up=True)


def page_of_what_is_there():
    """Make the page after an error, with what is missing and why."""
    if PAGE:
        file = SETTINGS_FILE if PAGE == "nested_rhat" else CONFIG_FILE
        command = [sys.executable, PACKAGES / PAGE, file]
        subprocess.run(command, check=False)


def draws_of_fit(wildcards):
    return CONFIG.experiments[wildcards.dataset].fit.draws


def page_input(experiments, stages):
    """Artifacts of those of a page's experiments that the config has."""

    def of(wildcards):
        needed = [
            str(graph.path(Path("results"), stage, name, model, batch))
            for name in experiments
            if name in CONFIG.experiments
            for stage in stages
            for model in CONFIG.experiments[name].models
            for batch in batches(name, model) or [""]
        ]
        return list(dict.fromkeys(needed))

    return of


SETTINGS_FILE = "results/nested_rhat/settings.yaml"
DEFAULT_SETTINGS = PACKAGES.parent / "config/nested_rhat/nested_rhat.yaml"
SETTINGS = None  # unless they are asked for
try:
    if not workflow.is_main_process:
        with suppress(PcvError):  # they may be those of another run
            SETTINGS = nested_rhat_settings.load(Path(SETTINGS_FILE))
    elif SHORT_CHAINS is not None:
        if not asked_for("nested_rhat"):
            raise PcvError("config: nested_rhat: only for `snakemake nested_rhat`")
        SETTINGS = nested_rhat_settings.parse({"nested_rhat": SHORT_CHAINS}, "config")
    elif PAGE == "nested_rhat" and GIVEN:
        raise PcvError(
            "config: nested_rhat: missing; add it, as in config/nested_rhat/quick.yaml"
        )
    elif asked_for("nested_rhat"):
        SETTINGS = nested_rhat_settings.load(DEFAULT_SETTINGS)
except PcvError as error:
    sys.exit("\n".join(f"error: {line}" for line in str(error).splitlines()))
TARGETS = SETTINGS.targets if SETTINGS else {}
RUNS = [nested_rhat_files.ILLUSTRATED, *TARGETS]
VARIED = any(len(runs.superchains) > 1 for runs in TARGETS.values())


def save_settings():
    """Write the settings, for the jobs."""
    text = yaml.safe_dump({"nested_rhat": SETTINGS.model_dump()}, sort_keys=False)
    Path(SETTINGS_FILE).parent.mkdir(parents=True, exist_ok=True)
    Path(SETTINGS_FILE).write_text(text)


def settings_of(wildcards):
    return nested_rhat_settings.part(SETTINGS, wildcards.target)


def cores_per_target(wildcards):
    """Run the targets side by side, which compile on one core each; on a cluster, on four each."""
    if not (workflow.local_exec and workflow.is_main_process):
        return 4
    return max(1, workflow.cores // len(RUNS))
