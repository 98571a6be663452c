r"""Evidence and cumulative cross-validation, by estimates along random orders of units. No JAX.

With units taken up in a random order, :math:`\log p(y_1, \dots, y_n)` is a sum of log predictive
densities of each unit given those before it. Its mean over orders separates (Fong and Holmes 2020,
propositions 2 and 3)

.. math::
    \log p(y) &= S_\mathrm{PCV}(P) + S_\mathrm{CCV}(P), \qquad
    S_\mathrm{CCV}(P) = \sum_{p=1}^P S_\mathrm{CV}(p) \\
    S_\mathrm{CV}(p) &= \mathrm E \, \frac1p \sum_{j \in \mathrm{test}}
        \log p(y_j \mid y_\mathrm{train}), \qquad
    S_\mathrm{CCV}(P) = \mathrm E \log p(y_\mathrm{test} \mid y_\mathrm{train}), \qquad
    S_\mathrm{PCV}(P) = \mathrm E \log p(y_\mathrm{train})

where p and P units are left out: the evidence is leave-p-out cross-validation cumulated over all p,
of which small training sets are the part that the prior decides.

Every order is followed twice, by independent sets of particles, so that their differences are Monte
Carlo error, and what remains of the spread over orders is that of the orders. As estimates of p(y)
are unbiased, those of log p(y) are too low, by half their variance; this is made up for.
"""

from pcv.analysis.evidence.comparing import (
    about,
    best,
    disagreement,
    in_table,
    table,
    verdict,
)
from pcv.analysis.evidence.comparing import at as at_of_models
from pcv.analysis.evidence.curves import (
    Curve,
    Estimate,
    at,
    curves,
    evidence,
    extent,
    frame,
    gained,
    left_out,
    minus,
    over_orders,
    sizes,
)
from pcv.analysis.evidence.ways import (
    BRIDGE,
    GOOD_K,
    LAPLACE,
    PATH,
    answer,
    beside,
    confirmed,
    doubts,
    every_way,
    in_words,
    number,
    of_path,
    of_prior,
    of_ways,
)

__all__ = [
    "BRIDGE",
    "GOOD_K",
    "LAPLACE",
    "PATH",
    "Curve",
    "Estimate",
    "about",
    "answer",
    "at",
    "at_of_models",
    "beside",
    "best",
    "confirmed",
    "curves",
    "disagreement",
    "doubts",
    "every_way",
    "evidence",
    "extent",
    "frame",
    "gained",
    "in_table",
    "in_words",
    "left_out",
    "minus",
    "number",
    "of_path",
    "of_prior",
    "of_ways",
    "over_orders",
    "sizes",
    "table",
    "verdict",
]
