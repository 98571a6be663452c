r"""Whether the best of many models is better than chance would make it. No JAX.

The best of many equally good models looks better than it is: its lead is the largest of many
errors. McLatchie and Vehtari (2024, *Statistics and Computing* 34, 132) compare it with an order
statistic; R's loo and ArviZ warn by that rule where there are more than 11 models.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from pcv.analysis.comparison import Comparison
from pcv.analysis.standard_errors import error_of_sum

MIN_MODELS = 12
"""models from which on the rule applies, as in loo and ArviZ"""
LEVEL = 0.9
"""probability that the best of equally good models stays below the bound"""


class Lead(NamedTuple):
    """The lead of the best model over the median one (nats)."""

    lead: float
    by_chance: float
    """what the best of as many equally good models stays below, with probability `LEVEL`"""

    @property
    def is_chance(self) -> bool:
        return bool(self.lead <= self.by_chance)


def lead_of_best(comparison: Comparison) -> Lead | None:
    r"""The lead of the best of M models over the median one, and what chance alone would give.

    .. math:: b = s \, \Phi^{-1}\big(0.9^{1 / (M - 1)}\big), \qquad
              s = \max\Big(\sqrt{\operatorname{mean}_{m: \delta_m \ge 0} \delta_m^2}, \;
              \mathrm{SE}\Big)

    with the lead :math:`\delta_m` of each model over the median one. The root is the spread of
    models, as in loo and ArviZ. The SE is that of the best one's difference from the average of
    these models; it is larger than the spread where errors of models are skewed. (loo and ArviZ
    take the quantile :math:`1 - 1 / (2 (M - 1))`, which the best of equally good models exceeds in
    a third of the data sets.)

    Args:
        comparison: of `compare`.

    Returns:
        None with fewer than `MIN_MODELS` models, or of a subsample, or where an elpd is not finite.
    """
    c, number = comparison, len(comparison.models)
    if number < MIN_MODELS or c.is_subsample or not np.isfinite(c.elpd_diff).all():
        return None
    middle = number // 2
    leads = c.elpd_diff - c.elpd_diff[middle]
    terms = c.elpd_diff_terms[:1] - c.elpd_diff_terms[leads >= 0].mean(axis=0)
    error = error_of_sum(terms, c.fold_of_term, c.overlap)[0]
    spread = np.sqrt(np.mean(leads[leads >= 0] ** 2))
    bound = np.fmax(spread, error) * ndtri(LEVEL ** (1 / (number - 1)))
    return Lead(float(leads[0]), float(bound))
