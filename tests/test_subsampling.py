"""The difference estimator against every subsample there is, and against many random ones."""

from itertools import combinations, product

import arviz_base as az
import arviz_stats
import jax
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from pcv.analysis.comparison import Scores, compare
from pcv.analysis.subsampling import (
    Subsample,
    difference_estimator,
    hansen_hurwitz,
    strata_of,
)
from pcv.base.section import SURROGATES
from pcv.folds.exchangeable import in_order
from pcv.sampling.fit.surrogates import posterior, surrogates
from tests.bounds import count_limits, sd_limits, z_limit

N = 2000
NAMES = ("elpd", "se")


def terms_of(seed, n=N):
    """Log predictive densities with a long lower tail, where the surrogate is furthest off."""
    rng = np.random.default_rng(seed)
    exact = -1 - rng.gamma(0.7, 1.0, n)
    return exact, exact + 0.05 * exact**2 * rng.normal(1, 1, n)


def subsample(order, strata, m):
    """The first m terms of an order."""
    return Subsample(order[:m], strata[order[:m]], np.bincount(strata))


def every_subsample(strata, numbers):
    """All subsamples of so many terms of each stratum."""
    members = [np.flatnonzero(strata == h) for h in range(len(numbers))]
    for parts in product(*(combinations(x, m) for x, m in zip(members, numbers))):
        term = np.array([j for part in parts for j in part])
        yield Subsample(term, strata[term], np.bincount(strata))


def test_is_what_arviz_computes():
    """But for the SE, which ArviZ takes over n terms, and the field over n - 1."""
    rng = np.random.default_rng(1)
    n, draws = 60, 500
    mu = rng.normal(0, 0.3, (4, draws, 1))
    y = rng.standard_t(4, n)
    ll = -0.5 * (y - mu) ** 2 - 0.5 * np.log(2 * np.pi)
    data = az.from_dict({"posterior": {"mu": mu[..., 0]}, "log_likelihood": {"y": ll}})
    which = rng.permutation(n)[:20]
    theirs = arviz_stats.loo_subsample(data, which, pointwise=True, reff=1.0, method="lpd")
    lpd = logsumexp(ll.reshape(-1, n), axis=0) - np.log(4 * draws)
    exact = theirs.elpd_i.values[which]
    ours = difference_estimator(subsample(which, np.zeros(n, int), 20), exact, lpd)
    assert ours.elpd == pytest.approx(theirs.elpd)
    assert ours.elpd_subsampling_se == pytest.approx(theirs.subsampling_se)
    assert ours.se == pytest.approx(theirs.se * np.sqrt(n / (n - 1)))


SMALL = np.array([0, 1, 0, 0, 1, 0, 1, 0])


@pytest.mark.parametrize("with_surrogate", [True, False])
@pytest.mark.parametrize(
    ("strata", "numbers"), [(np.zeros(8, int), (3,)), (SMALL, (2, 2)), (SMALL, (3, 3))]
)
def test_is_unbiased_over_all_subsamples(strata, numbers, with_surrogate):
    exact, near = terms_of(1, 8)
    surrogate = near if with_surrogate else None
    found = [
        difference_estimator(chosen, exact[chosen.term], surrogate)
        for chosen in every_subsample(strata, numbers)
    ]
    elpd = np.array([x.elpd for x in found])
    np.testing.assert_allclose(elpd.mean(), exact.sum())
    variance = np.mean([x.elpd_subsampling_se**2 for x in found])
    np.testing.assert_allclose(variance, elpd.var())
    squares = np.mean(
        [_squared(chosen, exact, surrogate) for chosen in every_subsample(strata, numbers)]
    )
    np.testing.assert_allclose(squares, 8 * exact.var(ddof=1))


def _squared(chosen, exact, surrogate):
    """The square of the SE, also where it is negative: from the estimators of two sums."""
    base = np.zeros(exact.size) if surrogate is None else surrogate
    total = difference_estimator(chosen, exact[chosen.term], base)
    squares = difference_estimator(chosen, exact[chosen.term] ** 2, base**2)
    n = exact.size
    found = (squares.elpd - (total.elpd**2 - total.elpd_subsampling_se**2) / n) * n / (n - 1)
    if found >= 0:
        np.testing.assert_allclose(total.se**2, found)
    else:
        assert np.isnan(total.se)
    return found


def test_equation_9_with_its_sign_mended():
    exact, near = terms_of(2)
    chosen = subsample(in_order(1, np.zeros(N, int)), np.zeros(N, int), 100)
    found = difference_estimator(chosen, exact[chosen.term], near)
    m, total = 100, near.sum()
    pi, there = exact[chosen.term], near[chosen.term]
    corrected = N / m * (pi - there).sum()
    printed = near @ near + N / m * (pi**2 - there**2).sum()
    bracket = corrected**2 - found.elpd_subsampling_se**2 + 2 * total * found.elpd - total**2
    np.testing.assert_allclose(found.se**2 * (N - 1) / N, printed - bracket / N)
    assert abs(found.se**2 - (printed + bracket / N)) > found.se**2


def repeated(estimate, times=1000):
    return np.array([estimate(seed) for seed in range(times)])


def mean_is(values, truth):
    limit = z_limit(df=len(values) - 1)
    return abs(values.mean() - truth) < limit * values.std() / np.sqrt(len(values))


def spread_is(values, errors):
    """By the errors told; both vary, together as a variance of kurtosis 6 at most."""
    low, high = sd_limits(len(values), kurtosis=6.0)
    return low < values.std() / np.sqrt(np.mean(errors**2)) < high


def drawn(seed, m=60, strata=None, spread=None):
    strata = np.zeros(N, int) if strata is None else strata
    return subsample(in_order(seed, strata, spread), strata, m)


@pytest.mark.parametrize("design", ["simple", "strata", "allocated"])
def test_covers_the_sum_and_its_se(design):
    exact, near = terms_of(3)
    strata, spread = strata_of(near, 5) if design != "simple" else (None, None)
    spread = spread if design == "allocated" else None

    def estimate(seed):
        chosen = drawn(seed, 60, strata, spread)
        return difference_estimator(chosen, exact[chosen.term], near)

    found = repeated(estimate)
    elpd, error = found[:, 0], found[:, 1]
    assert mean_is(elpd, exact.sum())
    assert spread_is(elpd, error)
    if design == "allocated":

        def simple(seed):
            chosen = drawn(seed)
            return difference_estimator(chosen, exact[chosen.term], near).elpd

        assert elpd.std() < repeated(simple).std()  # false alarm < 1e-4: by .84, with an sd of .03
    truth = np.sqrt(N) * exact.std(ddof=1)
    # False alarm < 1e-4: it is -.01 with an sd of .004; and the ratio is .8 to .9 with one of .02.
    assert abs(found[:, 2].mean() - truth) < 0.03 * truth
    assert 0.7 < (found[:, 3].mean() / found[:, 2].std()) < 1.2


def test_intervals_of_95_percent():
    rng = np.random.default_rng(4)
    exact = rng.normal(-1.4, 0.7, N)
    near = exact + rng.normal(0.3, 0.1, N)

    def inside(chosen, weight=1.0):
        found = difference_estimator(chosen, exact[chosen.term], near)
        return abs(found.elpd - exact.sum()) < 1.96 * found.elpd_subsampling_se * weight

    # False alarm < 1e-4: the first is .948 with an sd of .005, the second .994 with one of .002.
    assert 0.925 < repeated(lambda seed: inside(drawn(seed, 400)), 2000).mean() < 0.97
    with_replacement = 1 / np.sqrt(1 - 1000 / N)
    assert repeated(lambda seed: inside(drawn(seed, 1000), with_replacement)).mean() > 0.98


def regression(x, y):
    """Exact leave-one-out terms of a conjugate regression, and their surrogates."""
    covariance = np.linalg.inv(np.eye(x.shape[1]) + x.T @ x)
    mean, h = covariance @ x.T @ y, np.einsum("ij,jk,ik->i", x, covariance, x)
    exact = norm.logpdf(y, (x @ mean - h * y) / (1 - h), np.sqrt(1 / (1 - h)))
    draws = np.random.default_rng(2).multivariate_normal(mean, covariance, 500)
    found = surrogates(
        lambda b: jax.scipy.stats.norm.logpdf(y, x @ b), posterior(draws), SURROGATES
    )
    return exact, {name: np.asarray(x) for name, x in found.items()}


@pytest.mark.slow
def test_every_surrogate_is_unbiased_and_covers():
    """Of a regression, and of its difference from one without the last column."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(N, 5))
    y = x @ [0.5, -1.0, 0.2, 0.0, 0.3] + rng.normal(size=N)
    (a, of_a), (b, of_b) = regression(x, y), regression(x[:, :4], y)
    chosen = [drawn(seed, 800) for seed in range(1000)]
    for name in SURROGATES:
        for exact, near in ((a, of_a[name]), (a - b, of_a[name] - of_b[name])):
            found = np.array([difference_estimator(c, exact[c.term], near) for c in chosen])
            elpd, error, squares = found[:, 0], found[:, 1], found[:, 2] ** 2
            assert mean_is(elpd, exact.sum()), name
            assert mean_is(squares, N * exact.var(ddof=1)), name
            inside = abs(elpd - exact.sum()) < 1.96 * error
            assert 0.91 < inside.mean() < 0.98, name  # false alarm < 1e-4: .943 to .951, sd .007
            assert not mean_is(elpd - near.sum(), exact.sum()), name


def test_differences_of_models_are_terms_as_any():
    (a, near_a), (b, near_b) = terms_of(5), terms_of(6)
    b, near_b = a + 0.1 * b, near_a + 0.1 * near_b
    found = repeated(
        lambda seed: difference_estimator(x := drawn(seed), (a - b)[x.term], near_a - near_b)
    )
    assert mean_is(found[:, 0], (a - b).sum())
    apart = repeated(
        lambda seed: (
            difference_estimator(drawn(seed), a[drawn(seed).term], near_a).elpd
            - difference_estimator(drawn(seed + N), b[drawn(seed + N).term], near_b).elpd
        )
    )
    assert apart.std() > 3 * found[:, 0].std()


def test_biased_twins_are_seen():
    exact, near = terms_of(7)
    chosen = [drawn(seed) for seed in range(1000)]
    found = np.array([difference_estimator(x, exact[x.term], near).elpd for x in chosen])
    assert mean_is(found, exact.sum())
    without_sum = found - near.sum()
    assert not mean_is(without_sum, exact.sum())
    p = near / near.sum()
    as_if_drawn = [(exact[x.term] / p[x.term]).mean() for x in chosen]
    assert not mean_is(np.array(as_if_drawn), exact.sum())


def test_hansen_hurwitz():
    exact, near = terms_of(8)
    p = near / near.sum()

    def estimate(seed):
        some = np.random.default_rng(seed).choice(N, 60, p=p)
        return hansen_hurwitz(exact[some], p[some], N)

    found = repeated(estimate)
    assert mean_is(found[:, 0], exact.sum())
    assert spread_is(found[:, 0], found[:, 1])
    truth = np.sqrt(N) * exact.std(ddof=1)
    # False alarm < 1e-4: one in a thousand has no SE; the mean is off by -.02 with an sd of .006.
    assert abs(np.nanmean(found[:, 2]) - truth) < 0.1 * truth


def test_a_small_subsample_is_not_sure():
    """Of a difference with a probability of .91 in all terms."""
    rng = np.random.default_rng(1)
    diff = rng.normal(size=N)
    diff += 1.34 / np.sqrt(N) - diff.mean()
    names = [str(i) for i in range(N)]

    def p_better(chosen=None):
        some = np.arange(N) if chosen is None else chosen.term
        of = {"fold": [names[i] for i in some], "term": [names[i] for i in some]}
        of |= {"mcse": np.zeros(len(some)), "fold_of_term": np.arange(len(some)), "verdict": "ok"}
        same = "joint", "log", "y", "plain", "", ""
        pair = [
            Scores(name, *same, elpd=x, chosen=chosen, **of)
            for name, x in [("a", diff[some]), ("b", np.zeros(len(some)))]
        ]
        return compare(pair, reference="b").p_better[0 if pair[0].elpd.sum() > 0 else 1]

    assert p_better() == pytest.approx(0.91, abs=0.005)
    found = np.array([p_better(drawn(seed, 100)) for seed in range(400)])
    # 7% by an error of 1.02 and a mean of .3; by the SE alone three in four.
    assert np.sum(np.abs(found - 0.5) > 0.475) <= count_limits(400, 0.07)[1]


def test_larger_subsamples_contain_smaller_ones():
    _, near = terms_of(9)
    for strata, spread in [(np.zeros(N, int), None), strata_of(near, 8)]:
        order = in_order(1, strata, spread)
        np.testing.assert_array_equal(np.sort(order), np.arange(N))
        assert (np.bincount(strata[order[:16]], minlength=strata.max() + 1) >= 2).all()
        assert not np.array_equal(order, in_order(2, strata, spread))
        whole = difference_estimator(subsample(order, strata, N), near[order] + 1, near)
        np.testing.assert_allclose(whole.elpd, near.sum() + N)
        assert whole.elpd_subsampling_se == whole.se_subsampling_se == 0


def test_allocation_follows_the_spread():
    strata, spread = np.repeat([0, 1], N // 2), np.array([1.0, 3.0])
    order = in_order(1, strata, spread)
    assert abs(np.bincount(strata[order[:400]])[1] - 300) <= 1


def test_a_poor_surrogate_gives_no_se():
    exact = np.full(50, -1.0)
    one = np.zeros(50, int)
    near = np.random.default_rng(1).normal(-1, 5, 50)
    chosen = [subsample(in_order(seed, one), one, 5) for seed in range(100)]
    found = [difference_estimator(x, exact[x.term], near).se for x in chosen]
    assert 0 < np.isnan(found).sum() < 100
