"""One function per stage, from artifacts to an artifact: what the CLI, the rules and the API call.

    data ─▶ fit ─▶ folds ─▶ warmup ─▶ sample ─▶ diagnose ─▶ compare ─▶ report

A stage takes a `Job`, reads the artifacts before it, refuses those that do not belong to the
present config, and writes its own.
"""

from pcv.pipeline.stages.answers import compare, diagnose, diagnosed_of, plan, report, show
from pcv.pipeline.stages.batching import cut
from pcv.pipeline.stages.full_data import fit
from pcv.pipeline.stages.inputs import check, data, download, folds, folds_dataset
from pcv.pipeline.stages.sampling import sample
from pcv.pipeline.stages.warming_up import warmup

__all__ = [
    "check",
    "compare",
    "cut",
    "data",
    "diagnose",
    "diagnosed_of",
    "download",
    "fit",
    "folds",
    "folds_dataset",
    "plan",
    "report",
    "sample",
    "show",
    "warmup",
]
