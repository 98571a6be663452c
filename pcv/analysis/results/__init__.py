"""The contents of diagnostics.zarr, plan.zarr, comparison.zarr and its CSV files, from the stored
sums; and what they say in words. No JAX."""

from pcv.analysis.results.compared import Compared, below_the_joint_table, compare, trimmed
from pcv.analysis.results.diagnosed import diagnose, with_batch_check
from pcv.analysis.results.frames import by_surrogate
from pcv.analysis.results.other_scores import with_scores
from pcv.analysis.results.planned import plan
from pcv.analysis.results.scored import (
    Kind,
    distinct_kinds,
    listed,
    names_of_terms,
    on_mixtures,
    on_predictions,
    on_subspaces,
    rhat_max_in_words,
    scores,
)

__all__ = [
    "Compared",
    "Kind",
    "below_the_joint_table",
    "by_surrogate",
    "compare",
    "diagnose",
    "distinct_kinds",
    "listed",
    "names_of_terms",
    "on_mixtures",
    "on_predictions",
    "on_subspaces",
    "plan",
    "rhat_max_in_words",
    "scores",
    "trimmed",
    "with_batch_check",
    "with_scores",
]
