"""Evidence along random orders against closed forms, and a path that is biased."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from blackjax.smc import resampling
from blackjax.smc.partial_posteriors_path import build_kernel, init
from jax.scipy.stats import norm as normal
from scipy.special import betaln, logsumexp
from scipy.stats import multivariate_normal, norm

from pcv.analysis.evidence import at, curves, evidence, gained, minus, over_orders
from pcv.sampling.path import from_normal, from_prior, paths
from tests.bounds import sd_limits, z_limit

UNITS = 30
RNG = np.random.default_rng(1)
X = np.column_stack([np.ones(UNITS), RNG.normal(size=(UNITS, 2))])
Y = X @ [1.0, 0.5, -0.3] + RNG.normal(size=UNITS)
SD = np.array([10.0, 1.0, 1.0])


def orders_of(seed, number, units=UNITS):
    rng = np.random.default_rng(seed)
    return np.array([rng.permutation(units) for _ in range(number)])


def along(densities, seed, number, particles=64, sizes=(0,), units=UNITS):
    keys = jax.random.split(jax.random.key(seed), number)
    orders = orders_of(seed, number, units)
    return orders, paths(densities, particles, np.array(sizes), keys, orders)


def regression(width=3, sd=SD, y=Y):
    """Coefficients with independent normal priors; the noise has variance 1."""
    x = X[:, :width]
    return from_prior(
        lambda key: sd[:width] * jax.random.normal(key, (width,)),
        lambda b: normal.logpdf(b, 0, sd[:width]).sum(),
        lambda b: normal.logpdf(y, x @ b),
    )


def evidence_of(rows, width=3, sd=SD):
    x = X[rows, :width]
    covariance = (x * sd[:width] ** 2) @ x.T + np.eye(len(rows))
    return multivariate_normal.logpdf(Y[rows], np.zeros(len(rows)), covariance)


def predictive(train, test, width=3, sd=SD):
    """Mean log predictive density of the test units, each alone."""
    x = X[train, :width]
    covariance = np.linalg.inv(np.diag(1 / sd[:width] ** 2) + x.T @ x)
    mean, ahead = covariance @ x.T @ Y[train], X[test, :width]
    scale = np.sqrt(1 + np.einsum("ij,jk,ik->i", ahead, covariance, ahead))
    return norm.logpdf(Y[test], ahead @ mean, scale).mean()


COINS = np.array([1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0] * 2 + [1] * 6)


def coins():
    """A probability with a Beta(2, 3) prior, on the logit scale."""

    def log_prior(u):
        return (2 * jax.nn.log_sigmoid(u) + 3 * jax.nn.log_sigmoid(-u)).sum()

    def draw(key):
        p = jax.random.beta(key, 2.0, 3.0, (1,))
        return jnp.log(p) - jnp.log1p(-p)

    return from_prior(draw, log_prior, lambda u: jax.nn.log_sigmoid(jnp.where(COINS, u, -u)))


HEADS = COINS.sum()


@pytest.mark.slow
def test_log_evidence_is_unbiased_with_honest_errors():
    """Over 100 estimates of 16 orders each."""
    exact = betaln(2 + HEADS, 3 + UNITS - HEADS) - betaln(2, 3)
    _, found = along(coins(), 1, 16 * 100, 64)
    ends = found.log_evidence[..., -1].reshape(100, -1)
    each = [evidence(x) for x in ends]
    errors = np.expm1([x.value - exact for x in each])  # logs are biased
    assert abs(errors.mean()) < z_limit(df=99) * errors.std(ddof=1) / np.sqrt(100)
    z = np.array([(x.value - exact) / x.mcse for x in each])
    low, high = sd_limits(100, kurtosis=3.5)
    assert low < z.std(ddof=1) / np.sqrt(31 / 29) < high  # t errors: of 32 estimates
    assert np.mean([x.mcse for x in each]) < 0.15
    whole = evidence(ends)
    assert abs(whole.value - exact) < z_limit() * whole.mcse < 0.05
    # Without half the variance; false alarm < 1e-4: 8 MCSE or more, of 250 such estimates.
    assert abs(ends.mean() - exact) > z_limit() * whole.mcse


def scaled():
    """Effects with a common scale, as in a hierarchical model; exactly, by a grid of scales."""
    rng, groups = np.random.default_rng(11), 6
    y = rng.normal(size=groups)[:, None] + rng.normal(size=(groups, 5))

    def log_lik(u):
        effects = jnp.exp(u[0]) * u[1:]
        return normal.logpdf(y.ravel(), jnp.repeat(effects, 5), 1.0)

    densities = from_prior(
        lambda key: jax.random.normal(key, (groups + 1,)),
        lambda u: normal.logpdf(u).sum(),
        log_lik,
    )
    grid = np.linspace(-6, 6, 2001)
    within = np.eye(5)
    each = [
        multivariate_normal.logpdf(y, np.zeros(5), within + np.exp(2 * s)).sum() + norm.logpdf(s)
        for s in grid
    ]
    return densities, logsumexp(each) + np.log(grid[1] - grid[0])


@pytest.mark.slow
def test_a_scale_of_effects():
    densities, exact = scaled()
    _, found = along(densities, 10, 100, 256, units=30)
    whole = evidence(found.log_evidence[..., -1])
    assert abs(whole.value - exact) < z_limit(df=100) * whole.mcse < 0.15


@pytest.mark.slow
def test_priors_of_any_width():
    """The first units leave a posterior narrow in some directions and as wide as before in others,
    where a metric without these correlations would not let particles move."""
    sd = np.full(3, 1e4)
    orders, found = along(regression(sd=sd), 8, 60, 256, np.arange(UNITS))
    whole = evidence(found.log_evidence[..., -1])
    off = abs(whole.value - evidence_of(np.arange(UNITS), sd=sd))
    assert off < z_limit(df=60) * whole.mcse < 0.3
    assert found.acceptance.min() > 0.1
    exact = np.array([[predictive(o[:m], o[m:], sd=sd) for m in range(UNITS)] for o in orders])
    path = xr.Dataset(
        {
            "log_evidence": (("order", "set", "trained_units"), found.log_evidence),
            "score": (("order", "set", "size"), found.score),
            "trained": ("size", np.arange(UNITS)),
        },
        attrs={"improper": ""},
    )
    curve = curves(path)["s_cv"]
    spread = exact.std(0, ddof=1) / np.sqrt(len(orders))
    error = np.hypot(np.hypot(curve.mcse, curve.se), spread)
    off = abs(curve.value - exact.mean(0))
    assert (off < z_limit(UNITS, df=59) * error + 2e-3).all()
    assert (off[4:] < z_limit(UNITS - 4, df=59) * curve.mcse[4:] + 2e-3).all()


def test_both_errors_are_those_of_the_mean():
    """Over orders that differ by 1 and noise that differs by 1."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(1000):
        of_order = rng.normal(0, 1, (64, 1, 1))
        noise = rng.normal(-0.5, 1, (64, 2, 1))
        values = of_order + noise
        curve = over_orders(values, values.var(1, ddof=1) / 2)
        found.append((curve.value[0], curve.se[0] ** 2, curve.mcse[0] ** 2))
    value, se, mcse = np.transpose(found)
    assert abs(value.mean()) < z_limit(df=999) * value.std(ddof=1) / np.sqrt(1000)
    assert se.mean() == pytest.approx(1 / 64, rel=0.05)  # false alarm < 1e-4: relative sd .009
    low, high = sd_limits(1000, kurtosis=3.1)
    assert low < value.std(ddof=1) / np.sqrt(se.mean() + mcse.mean()) < high


@pytest.mark.parametrize("noise", [0.5, 2.0])
@pytest.mark.parametrize(
    ("name", "number", "over"), [("median", 64, 0.2), ("trimmed", 64, 0.0), ("trimmed", 8, 0.0)]
)
def test_robust_means_over_orders_have_honest_errors(name, number, over, noise):
    """Of cumulative scores with a heavy tail over orders, but for variances of the median that are
    up to a fifth too large; one that is far off hardly counts."""
    rng, found = np.random.default_rng(1), []

    def path(scores):
        whole = np.zeros((number, 2, 2))
        whole[:, :, 1] = scores[:, None] + rng.normal(-(noise**2) / 2, noise, (number, 2))
        dims = ("order", "set", "trained_units")
        return xr.Dataset({"log_evidence": (dims, whole)}, attrs={"improper": "a", "prepared": 0})

    for _ in range(400):
        row = at(path(rng.standard_t(5, number)), 1)
        found.append(row[[f"s_ccv_{name}", f"s_ccv_{name}_se", f"s_ccv_{name}_mcse"]])
    value, se, mcse = np.transpose(found)
    assert abs(value.mean()) < z_limit(df=399) * value.std(ddof=1) / np.sqrt(400)
    low, high = sd_limits(400, kurtosis=4.0)
    ratio = value.std(ddof=1) / np.sqrt((se**2 + mcse**2).mean())
    assert low / np.sqrt(1 + over) < ratio < high
    assert (mcse.mean() > se.mean()) == (noise > 1)
    if number > 10:
        scores = rng.standard_t(5, number)
        scores[3] = -1000
        # False alarm < 1e-4: sd .5 at most. The mean is off by 16.
        assert abs(at(path(scores), 1)[f"s_ccv_{name}"]) < 4


@pytest.mark.parametrize("far", [0, 1e8])
def test_errors_of_the_median(far):
    """Of two orders, those of their mean; and none from how far all scores are from 0."""
    rng = np.random.default_rng(1)
    for number in (2, 64):
        whole = np.zeros((number, 2, 2))
        whole[:, :, 1] = rng.normal(0, 1, (number, 1)) + rng.normal(0, 1e-5, (number, 2)) - far
        dims = ("order", "set", "trained_units")
        attrs = {"improper": "a", "prepared": 0}
        row = at(xr.Dataset({"log_evidence": (dims, whole)}, attrs=attrs), 1)
        # False alarm < 1e-4: of 64 orders, 1.31 with sd .29.
        assert 0.4 < row["s_ccv_median_se"] / row["s_ccv_se"] < 3
        if number == 2:
            assert row["s_ccv_median_mcse"] == pytest.approx(row["s_ccv_mcse"])
            assert row["s_ccv_trimmed_se"] == pytest.approx(row["s_ccv_se"])


@pytest.mark.slow
def test_the_two_sets_are_independent():
    """Though each takes its metric from the other."""
    _, found = along(regression(), 2, 400)
    one, other = found.log_evidence[..., -1].T
    assert abs(np.corrcoef(one, other)[0, 1]) < z_limit() / np.sqrt(400)


@pytest.fixture(scope="module")
def followed():
    sizes = np.arange(UNITS)
    with jax.enable_x64(True):
        orders, found = along(regression(), 3, 100, 256, sizes)
    return orders, sizes, found


@pytest.mark.slow
def test_cumulative_scores_of_the_same_orders(followed):
    """At every P, so that they differ by Monte Carlo error alone."""
    orders, sizes, found = followed
    whole = np.full(UNITS, UNITS)
    exact = np.array([[evidence_of(order[:size]) for size in sizes[1:]] for order in orders])
    all_ = evidence_of(np.arange(UNITS))
    ccv = gained(found.log_evidence, sizes, whole)
    pcv = gained(found.log_evidence, 0 * sizes, sizes)
    error, limit = ccv.value[1:] - (all_ - exact).mean(0), z_limit(UNITS - 1, df=99)
    assert (abs(error) < limit * ccv.mcse[1:]).all()
    assert (ccv.mcse[5:] < 0.03).all()  # false alarm < 1e-4: below .012, with a relative sd of .05
    error = pcv.value[1:] - exact.mean(0)
    assert (abs(error) < limit * pcv.mcse[1:]).all()
    np.testing.assert_allclose(ccv.value + pcv.value, ccv.value[0], atol=1e-9)
    assert abs(ccv.value[0] - all_) < z_limit(df=99) * ccv.mcse[0]
    spread = (all_ - exact).std(0, ddof=1) / np.sqrt(len(orders))
    # False alarm < 1e-4: relative sds of .01 at most.
    np.testing.assert_allclose(ccv.se[5:], spread[4:], rtol=0.15)


@pytest.mark.slow
def test_leave_p_out_scores_of_the_same_orders(followed):
    orders, sizes, found = followed
    curve = over_orders(found.score)
    exact = np.array([[predictive(o[:m], o[m:]) for m in sizes] for o in orders])
    assert (abs(curve.value - exact.mean(0)) < z_limit(UNITS, df=99) * curve.mcse + 2e-3).all()
    ccv = gained(found.log_evidence, sizes, np.full(UNITS, UNITS))
    summed = np.cumsum(curve.value[::-1])[::-1]
    gains = found.log_evidence[:, :, -1:] - found.log_evidence[:, :, :-1]
    apart = np.cumsum(found.score[:, :, ::-1], axis=2)[:, :, ::-1].mean(1) - gains.mean(1)
    error = np.hypot(apart.std(0, ddof=1) / np.sqrt(len(orders)), 0.01)
    assert (abs(summed - ccv.value) < z_limit(UNITS, df=99) * error).all()


@pytest.mark.slow
def test_differences_are_paired_by_order():
    (_, one), (_, other) = (along(regression(width), 4, 60, 256) for width in (3, 2))
    first, last = np.array([6]), np.array([UNITS])
    a, b = (gained(x.log_evidence, first, last) for x in (one, other))
    apart = minus(a, b)
    exact = [
        [evidence_of(np.arange(UNITS), w) - evidence_of(o[:6], w) for w in (3, 2)]
        for o in orders_of(4, 60)
    ]
    off = abs(apart.value[0] - np.subtract(*np.transpose(exact)).mean())
    assert off < z_limit(df=59) * apart.mcse[0]
    assert apart.se[0] < np.hypot(a.se, b.se)[0]


@pytest.mark.slow
def test_a_prior_without_draws():
    """Flat: from a normal to the posterior of the first ten units, and on."""
    whole = np.linalg.inv(X.T @ X)
    root = np.linalg.cholesky(3 * whole)
    densities = from_normal(
        jnp.asarray(whole @ X.T @ Y),
        jnp.asarray(root),
        lambda b: jnp.zeros(()),
        lambda b: normal.logpdf(Y, X @ b),
        10,
    )
    orders, found = along(densities, 5, 60, 256)
    sd = np.full(3, 1e3)
    first = np.arange(1, UNITS - 9)
    ccv = gained(found.log_evidence, first, np.full(first.size, UNITS - 9))
    exact = np.array(
        [
            [
                evidence_of(np.arange(UNITS), sd=sd) - evidence_of(order[: 9 + i], sd=sd)
                for i in first
            ]
            for order in orders
        ]
    )
    limit = z_limit(first.size, df=59)
    assert (abs(ccv.value - exact.mean(0)) < limit * ccv.mcse + 1e-4).all()


@pytest.mark.slow
def test_what_is_impossible_in_most_of_the_prior():
    """Uniform outcomes on (0, θ), of which the largest decides, wherever it comes."""
    y = np.array([0.2, 0.9, 0.5, 3.9])

    def log_lik(u):
        return jnp.where(y < jnp.exp(u[0]), -u[0], -jnp.inf)

    densities = from_prior(
        lambda key: jax.random.exponential(key, (1,)),
        lambda u: jnp.where(u[0] > 0, -u[0], -jnp.inf),
        log_lik,
    )
    _, found = along(densities, 6, 100, 256, units=4)
    whole = evidence(found.log_evidence[..., -1])
    exact = -np.log(5) - 5 * np.log(3.9)  # ∫ exp(-5 u) from log 3.9
    assert abs(whole.value - exact) < z_limit(df=100) * whole.mcse < 0.4


def test_moving_before_weighing_is_biased():
    """One datum at 0 from N(θ, 1), θ from N(0, 1): p(y) = .282, and not that of BlackJAX 1.7."""
    densities = from_prior(
        lambda key: jax.random.normal(key, (1,)),
        lambda b: normal.logpdf(b).sum(),
        lambda b: normal.logpdf(jnp.zeros(1), b),
    )
    _, found = along(densities, 7, 400, 256, units=1)
    whole, exact = evidence(found.log_evidence[..., -1]), norm.logpdf(0, 0, np.sqrt(2))
    assert abs(whole.value - exact) < z_limit() * whole.mcse < 0.03

    def posterior(mask):
        return lambda x: normal.logpdf(x) + mask[0] * normal.logpdf(0.0, x)

    def moved(key, state, log_density, step_size):
        return blackjax.rmh.build_kernel()(
            key, state, log_density, lambda key, x: x + step_size * jax.random.normal(key)
        )

    settings = {"step_size": jnp.full((1,), 2.0)}
    kernel = build_kernel(moved, blackjax.rmh.init, resampling.systematic, 50, settings, posterior)
    start = jax.random.normal(jax.random.key(0), (2000,))
    _, info = kernel(jax.random.key(1), init(start, 1), jnp.ones(1))
    assert info.log_likelihood_increment - exact > 0.05  # false alarm < 1e-4: .14 with sd .006
