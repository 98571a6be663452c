"""Files of log likelihoods that a config names in place of a model."""

import numpy as np
from jaxtyping import Float

from pcv.core.log_lik import LogLik
from pcv.core.problem import Problem
from pcv.pipeline.data import log_lik, matching, tables
from pcv.pipeline.job import Job

ROW = "row of the table"
"""column with which rows are followed into the order of units"""


def read_log_lik(job: Job, problem: Problem) -> LogLik:
    """Read the log likelihoods of a job's model, in the order of its data and folds.

    Args:
        job: of a model that is a file.
        problem: of its data and folds.

    Raises:
        PcvError: the file is missing, incomplete, or of other folds or units.
    """
    return matching.match_folds(_collect(job), problem.folds, _index_units(job, problem.units))


def read_full(job: Job, problem: Problem) -> Float[np.ndarray, "chain draw unit"] | None:
    """Read the log likelihoods of the full data, as `read_log_lik` does; None: unknown."""
    return matching.match_full(_collect(job), _index_units(job, problem.units))


def _collect(job: Job) -> log_lik.RawLogLik:
    return log_lik.collect(job.model_config.model, job.model_config.args.get("full"))


def _index_units(job: Job, units: list[str]) -> dict[str, int]:
    """Index units by their names and, if they are rows, by the numbers of their rows in the table,
    which `data.order` may sort."""
    index, settings = {name: i for i, name in enumerate(units)}, job.settings.data
    if not settings.units:
        table, _ = tables.read_table(job.table, settings.outcome)
        numbered = table.assign(**{ROW: np.arange(1, len(table) + 1)})
        followed = settings.model_copy(update={"columns": [ROW]})
        rows = tables.make_data(numbered, {}, followed, str(job.table))[ROW].values
        index |= {str(row): i for i, row in enumerate(rows.tolist())}
    return index
