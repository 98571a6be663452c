r"""Estimates and diagnostics from the stored sums of a log score.

A fold's draws :math:`s_{lt}` (chain l, draw t) are split into batches of consecutive draws, and
only sums per batch are stored. Regrouped, they give everything:

- by fold, `merge(sums, axis=(1, 2))`: the estimate, `elpd(sums)`;
- by batch: its Monte Carlo standard error, `mcse(sums)`, and `ess(sums)`; that of other scores by
  `jackknife`;
- by chain, `merge(sums, axis=2)`: `rhat(sums)`;
- by block of batches, `coarsen(sums, 5)`: the benchmark for the largest R-hat of all folds,
  `rhat_max_benchmark(rng, sums)`.

Full-data draws are informative about each fold as well: `two_sided` combines both, and reports use
its estimate and error, `two_sided_mcse`; `psis` needs full-data draws alone. Tail
diagnostics (`pareto_khat`) need the draws themselves, or the largest of them. Folds may have
different numbers of draws; every formula uses the fold's own.
"""

from pcv.analysis.diagnostics.convergence import (
    constant,
    drift,
    efmi,
    mixing,
    nested_limit,
    nested_rhat,
    rhat,
    tolerated,
)
from pcv.analysis.diagnostics.estimates import (
    BATCH_SIZES,
    SHORT_BATCHES,
    autocorrelation,
    batch_inflation,
    batch_size_check,
    elpd,
    elpd_pointwise,
    ess,
    ess_total,
    mcse,
    mcse_pointwise,
)
from pcv.analysis.diagnostics.log_sums import (
    LogSums,
    batch_sums,
    coarsen,
    first_batches,
    merge,
    third_moments,
)
from pcv.analysis.diagnostics.over_draws import Progressive, progressive
from pcv.analysis.diagnostics.rhat_max import (
    BENCHMARK_LEVEL,
    BLOCKS,
    Benchmark,
    benchmark_of_models,
    mixing_benchmark,
    nested_alone,
    nested_benchmark,
    rhat_max_benchmark,
)
from pcv.analysis.diagnostics.tails import (
    good_k,
    hidden_variance,
    largest,
    pareto_khat,
    pareto_khat_from_tail,
    tail_size,
)
from pcv.analysis.diagnostics.two_sided import (
    OFFSETS,
    Sides,
    TwoSided,
    UnitSides,
    balanced_shift,
    crossing,
    first_of_sides,
    two_sided,
    two_sided_mcse,
    two_sided_units,
)

__all__ = [
    "BATCH_SIZES",
    "BENCHMARK_LEVEL",
    "BLOCKS",
    "OFFSETS",
    "SHORT_BATCHES",
    "Benchmark",
    "LogSums",
    "Progressive",
    "Sides",
    "TwoSided",
    "UnitSides",
    "autocorrelation",
    "balanced_shift",
    "batch_inflation",
    "batch_size_check",
    "batch_sums",
    "benchmark_of_models",
    "coarsen",
    "constant",
    "crossing",
    "drift",
    "efmi",
    "elpd",
    "elpd_pointwise",
    "ess",
    "ess_total",
    "first_batches",
    "first_of_sides",
    "good_k",
    "hidden_variance",
    "largest",
    "mcse",
    "mcse_pointwise",
    "merge",
    "mixing",
    "mixing_benchmark",
    "nested_alone",
    "nested_benchmark",
    "nested_limit",
    "nested_rhat",
    "pareto_khat",
    "pareto_khat_from_tail",
    "progressive",
    "rhat",
    "rhat_max_benchmark",
    "tail_size",
    "third_moments",
    "tolerated",
    "two_sided",
    "two_sided_mcse",
    "two_sided_units",
]
