r"""elpd of a fold from two sides: its own draws and full-data draws. No JAX.

If a fold holds out its test set and nothing else, its posterior differs from the full-data one by
a single factor, :math:`p(\theta \mid y) = p(\theta \mid y_\mathrm{train}) \, e^{s(\theta)} / f`,
where s is the log predictive density of the test set and f the mean of :math:`e^s` over the fold's
posterior. Bennett's acceptance ratio (1976) estimates f from draws of both:

.. math:: f = e^c \, \frac{\mathrm{E}_\mathrm{train}[\sigma(s - c)]}{\mathrm{E}_y[\sigma(c - s)]},
          \qquad \sigma(x) = 1 / (1 + e^{-x})

for every *shift* c, with the smallest error at :math:`c = \log f + \log n_0 / n_1`. A draw's
*crossing* is the probability :math:`\sigma` that it belongs to the other side: since this is
bounded, no single draw dominates the mean crossing, however heavy the tail of :math:`e^s`. (Meng
and Wong 1996; Shirts and Chodera 2008.)
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import expit, logsumexp, stdtr

from pcv.analysis.diagnostics.estimates import deviations, elpd, padded
from pcv.analysis.diagnostics.log_sums import LogSums, of_slots

OFFSETS = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
"""from the shift: estimates leaning on the fold's draws, on neither side, on full-data draws"""
BALANCED = 2
"""index of the shift itself"""
ROUNDING = 1e-5
"""nats that both sides of a score which no parameter changes may differ by"""
STEPS = 60
"""of the bisection for the shift"""


class Sides(NamedTuple):
    """Mean crossings of batches of draws, at each of the `OFFSETS`."""

    shift: Float[np.ndarray, " fold"]
    """c (nats); inf for one-sided folds"""
    own: Float[np.ndarray, "fold chain batch offset"]
    """of the fold's draws; NaN in batches after its end"""
    full: Float[np.ndarray, "fold full_batch offset"]
    """of full-data draws, which all folds share"""
    full_draws: int
    """number of full-data draws in all batches"""


class TwoSided(NamedTuple):
    """elpd of folds, or of units, with the contributions to its error.

    A fold's squared MCSE is the sum of squares of both its deviations. Folds share the full-data
    draws: sums of products of their `full_deviation` are covariances.
    """

    elpd: Float[np.ndarray, " fold *slot"]
    own_deviation: Float[np.ndarray, "fold chain batch"]
    """contribution of each batch of the fold's draws to the error (nats), for units of their sum"""
    full_deviation: Float[np.ndarray, "fold full_batch"]
    """the same for full-data draws"""
    carry: Float[np.ndarray, " fold *slot"]
    """effective number of draws behind the mean: for folds, expected number of crossings from the
    side with fewer; NaN for one-sided folds"""
    overlap: Float[np.ndarray, " fold"]
    r"""of both posteriors, :math:`\int p_0 p_1 / (\pi_0 p_0 + \pi_1 p_1)`: 1 where they are the
    same, 0 where they are disjoint; NaN for one-sided folds"""
    gap: Float[np.ndarray, " fold"]
    """difference between the estimates that lean on either side (nats)"""
    gap_p: Float[np.ndarray, " fold"]
    """p-value of the gap, by its standard error"""


def crossing(
    draws: Float[np.ndarray, "fold *chain draw"], shift: Float[np.ndarray, " fold"], own: bool
) -> Float[np.ndarray, "fold *chain offset"]:
    """Mean probability that draws belong to the other side.

    Args:
        draws: log scores s (nats) of one batch.
        shift: c of every fold.
        own: whether they are the fold's draws, rather than full-data draws.

    >>> crossing(np.zeros((1, 2)), np.zeros(1), own=True).round(2)
    array([[0.12, 0.27, 0.5 , 0.73, 0.88]])
    """
    of_fold = shift.reshape(-1, *(1,) * draws.ndim)
    apart = draws[..., None] - of_fold + OFFSETS
    return expit(apart if own else -apart).mean(axis=-2)


def balanced_shift(
    own: Float[np.ndarray, "fold draw"], full: Float[np.ndarray, "fold full_draw"]
) -> Float[np.ndarray, " fold"]:
    r"""The shift with equal mean crossings from both sides, itself an estimate of elpd:

    .. math:: \mathrm{mean}_0 \, \sigma(s - c) = \mathrm{mean}_1 \, \sigma(c - s)

    Args:
        own, full: log scores s (nats) at pilot draws of either side.

    >>> balanced_shift(np.full((1, 100), -1.0), np.full((1, 100), -1.0)).round(6)
    array([-1.])
    """
    ends = np.concatenate([own, full], axis=1)
    finite = np.isfinite(ends)
    low = np.where(finite, ends, np.inf).min(axis=1) - 50.0
    high = np.where(finite, ends, -np.inf).max(axis=1) + 50.0
    for _ in range(STEPS):
        c = (low + high)[:, None] / 2
        more = expit(own - c).mean(axis=1) > expit(c - full).mean(axis=1)
        low, high = np.where(more, c[:, 0], low), np.where(more, high, c[:, 0])
    return (low + high) / 2


def two_sided(sums: LogSums, sides: Sides | None, inflation: float = 1.0) -> TwoSided:
    r"""`elpd` of folds from both sides where available, else from their own draws alone.

    .. math:: \hat\eta_k = c_k + \log \hat C_{0k} - \log \hat C_{1k}, \qquad
              \mathrm{MCSE}_k^2 = \sum_b \Big(\frac{C_{0kb}}{\hat C_{0k}} - 1\Big)^2
              \frac{1}{B (B - 1)} + \text{the same of } C_{1k}

    with the mean crossings :math:`\hat C` of both sides and those of their B batches: the jackknife
    over the batches of both sides, to first order. PCV eq. 13–15 for one side. The estimate uses
    the offset closest to :math:`\log n_1 / n_0`, with the numbers of draws, and so leans on the
    side with more draws, whose error is smaller. Where not even a rounding error of a draw crosses,
    it is from the fold's own draws, and `carry` is 0.

    Args:
        sums: joint sums, dims (fold, chain, batch).
        sides: None: the fold's own draws alone.
        inflation: of `batch_inflation`, applied to the fold's own draws in the gap's variance.

    >>> from pcv.analysis.diagnostics import batch_sums
    >>> rng, f = np.random.default_rng(1), -0.25
    >>> s = {"own": rng.normal(f - 0.5, 1, (1, 1, 2000)), "full": rng.normal(f + 0.5, 1, (1, 2000))}
    >>> shift, batches = np.array([0.0]), s["full"].reshape(1, 20, 100)
    >>> sides = Sides(
    ...     shift,
    ...     crossing(s["own"].reshape(1, 1, 20, 100), shift, own=True),
    ...     crossing(batches, shift, own=False),
    ...     2000,
    ... )
    >>> found = two_sided(batch_sums(s["own"], 100), sides)
    >>> abs(found.elpd - f) < 3 * two_sided_mcse(found), found.overlap.round(1)
    (array([ True]), array([0.8]))
    """
    values, own = _log_mean(sums)
    if sides is None:
        nan = np.full(len(own), np.nan)
        return TwoSided(values, own, np.zeros((len(own), 1)), nan, nan, nan, nan)
    log_mean, of_own = _log_mean(sums, _log_sum(sums, sides.own))
    full_mean, of_full = _full_mean(sides.full)
    both, crossed = np.isfinite(sides.shift), _crossed(sides)
    number = sums.count.sum(axis=(1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        each = sides.shift[:, None] - OFFSETS + log_mean - np.log(full_mean)
        by_own, by_full = (_sum_of_squares(x[..., 0] - x[..., -1]) for x in (of_own, of_full))
        gap_error = np.maximum(np.sqrt(inflation * by_own + by_full), ROUNDING)
        lean = np.log(sides.full_draws / number)[:, None]
        gap = each[:, 0] - each[:, -1]
        batches = np.minimum((sums.count > 0).sum(axis=(1, 2)), sides.full.shape[1])
        gap_p = 2 * stdtr(np.maximum(batches - 1, 1), -np.abs(gap / gap_error))
    fold, best = np.arange(len(number)), np.argmin(np.abs(OFFSETS - lean), axis=1)
    mean, full_mean, each = np.exp(log_mean)[fold, best], full_mean[fold, best], each[fold, best]
    there, nan = crossed[:, None, None], np.where(both, 0.0, np.nan)
    return TwoSided(
        np.where(crossed, each, values),
        np.where(there, of_own[fold, ..., best], own),
        np.where(there[:, 0], -of_full[fold, ..., best], 0.0),
        np.minimum(number * mean, sides.full_draws * full_mean) + nan,
        mean + full_mean + nan,
        np.where(crossed, gap, np.nan),
        np.where(crossed, gap_p, np.nan),
    )


def _crossed(sides: Sides) -> Bool[np.ndarray, " fold"]:
    """Whether draws of both sides cross, be it ever so seldom."""
    own, full = np.nansum(sides.own, axis=(1, 2)), sides.full.sum(1)
    return np.isfinite(sides.shift) & ((own > 0) & (full > 0)).all(1)


def _log_sum(
    sums: LogSums, means: Float[np.ndarray, "fold chain batch offset"]
) -> Float[np.ndarray, "fold chain batch offset"]:
    with np.errstate(divide="ignore"):
        return np.log(of_slots(sums.count, means) * means)


def _log_mean(
    sums: LogSums, log_sum: Float[np.ndarray, "fold chain batch *slot"] | None = None
) -> tuple[Float[np.ndarray, " fold *slot"], Float[np.ndarray, "fold chain batch *slot"]]:
    """Log of a mean over draws, from log sums over batches, and each batch's part in its error."""
    if log_sum is not None:
        sums = LogSums(sums.count, *(log_sum,) * 4)
    deviation, factor = deviations(sums)
    return elpd(sums), np.sqrt(factor)[:, None, None] * deviation


def _full_mean(
    means: Float[np.ndarray, "fold full_batch *slot"],
) -> tuple[Float[np.ndarray, " fold *slot"], Float[np.ndarray, "fold full_batch *slot"]]:
    """A mean over full-data draws, and each batch's contribution to its relative error."""
    mean, number = means.mean(axis=1), means.shape[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        return mean, (means / mean[:, None] - 1) / np.sqrt(number * (number - 1))


def _sum_of_squares(deviation: np.ndarray) -> Float[np.ndarray, " fold"]:
    found: np.ndarray = (deviation**2).sum(axis=tuple(range(1, deviation.ndim)))
    return found


class UnitSides(NamedTuple):
    """Sums of exp(s_i), s_i the pointwise scores, over draws of both sides, weighted by the
    probability that a draw belongs to the fold's side."""

    own: Float[np.ndarray, "fold chain batch slot"]
    r"""log of :math:`\sum_t e^{s_i} \sigma(c - s)` over a batch of the fold's draws"""
    full: Float[np.ndarray, "fold full_batch slot"]
    """log of the mean of the same over a batch of full-data draws"""
    own_sq: Float[np.ndarray, "fold chain batch slot"]
    """`own` with squared summands"""
    full_sq: Float[np.ndarray, "fold full_batch slot"]


def two_sided_units(
    sums: LogSums,
    joint: TwoSided,
    sides: Sides,
    units: UnitSides | None,
    alone: Bool[np.ndarray, " fold"],
) -> TwoSided:
    r"""`elpd` of the units of folds from both sides, and the errors of their sums.

    .. math:: \hat f_i = A_i + \frac{C_0}{C_1} B_i, \qquad
              A_i = \mathrm{mean}_0 \, e^{s_i} \sigma(c - s), \quad
              B_i = \mathrm{mean}_1 \, e^{s_i} \sigma(c - s)

    with the crossings C of the joint score s: draws of both sides, each weighted by its share in
    the fold's posterior. (The summands are unbounded, so that few draws may dominate a unit's mean:
    `carry` is their effective number, :math:`\hat f_i^2 / \mathrm{mean}(x^2)` over all summands x,
    in draws.) For a fold of one unit this is the joint score.

    Args:
        sums: pointwise sums, dims (fold, chain, batch, slot); NaN in padded slots.
        joint: of `two_sided`, for the joint sums.
        sides: of the joint score.
        units: None where every fold leaves out one unit.
        alone: which folds leave out one unit.
    """
    values, own = _log_mean(sums)
    there = ~padded(sums)
    full = np.zeros((*joint.full_deviation.shape, values.shape[1]))
    carry = np.full(values.shape, np.nan)
    if units is not None:
        both, crossed = np.isfinite(sides.shift)[:, None], _crossed(sides)[:, None]
        (log_mean, of_own), (log_own, own_units) = (
            _log_mean(sums, x) for x in (_log_sum(sums, sides.own[..., [BALANCED]]), units.own)
        )
        full_mean, of_full = _full_mean(sides.full[..., [BALANCED]])
        with np.errstate(invalid="ignore", divide="ignore"):
            log_full = logsumexp(units.full, axis=1) - np.log(units.full.shape[1])
            log_ratio = log_mean - np.log(full_mean)
            from_full = log_ratio + log_full
            either = np.logaddexp(log_own, from_full)
            share = np.exp(from_full - either)[:, None]
            _, full_units = _full_mean(np.exp(units.full - log_full[:, None]))
            own_both = (1 - share[:, None]) * own_units + share[:, None] * of_own
            full_both = share * (full_units - of_full)
            own_sq = elpd(sums._replace(log_sum=units.own_sq))
            full_sq = logsumexp(units.full_sq, axis=1) - np.log(units.full_sq.shape[1])
            squares = np.logaddexp(
                own_sq - np.log(sums.count.sum(axis=(1, 2)))[:, None],
                full_sq - np.log(sides.full_draws) + 2 * log_ratio,
            )
            found = np.where(crossed, np.exp(2 * either - squares), 0.0)
        carry = np.where(both, found, np.nan)
        values = np.where(crossed, either, values)
        own = np.where(crossed[:, None, None], own_both, own)
        full = np.where(crossed[:, None], full_both, full)
    single = alone[:, None] & there
    values = np.where(single, joint.elpd[:, None], values)
    own = np.where(single[:, None, None], joint.own_deviation[..., None], own)
    full = np.where(single[:, None], joint.full_deviation[..., None], full)
    return joint._replace(
        elpd=np.where(there, values, np.nan),
        own_deviation=np.where(there[:, None, None], own, 0.0).sum(axis=3),
        full_deviation=np.where(there[:, None], full, 0.0).sum(axis=2),
        carry=np.where(single, joint.carry[:, None], carry),
    )


def first_of_sides(
    sides: Sides, units: UnitSides | None, number: int
) -> tuple[Sides, UnitSides | None]:
    """The sides with only the first `number` batches of every fold's chains."""
    first = sides._replace(own=sides.own[:, :, :number])
    if units is None:
        return first, None
    own, own_sq = (x[:, :, :number] for x in (units.own, units.own_sq))
    return first, units._replace(own=own, own_sq=own_sq)


def two_sided_mcse(estimate: TwoSided, inflation: float = 1.0) -> Float[np.ndarray, " fold"]:
    """Monte Carlo standard error of each fold (nats).

    Args:
        estimate: of folds, or of the sums over their units.
        inflation: of `batch_inflation`, applied to the variance due to the fold's own draws.
    """
    own, full = _sum_of_squares(estimate.own_deviation), _sum_of_squares(estimate.full_deviation)
    return np.sqrt(inflation * own + full)
