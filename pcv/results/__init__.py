"""What diagnostics.zarr and comparison.zarr hold, computed from the stored sums alone. No JAX."""

from pcv.results.compared import Compared, compare, trimmed
from pcv.results.diagnosed import diagnose, with_batch_check, with_scores
from pcv.results.planned import plan
from pcv.results.scored import Kind, distinct_kinds, listed, scores

__all__ = [
    "Compared",
    "Kind",
    "compare",
    "diagnose",
    "distinct_kinds",
    "listed",
    "plan",
    "scores",
    "trimmed",
    "with_batch_check",
    "with_scores",
]
