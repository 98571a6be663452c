"""The models of the paper's examples: densities against SciPy, posteriors against printed means."""

from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy.stats import beta, gamma, halfnorm, multivariate_normal, norm

import pcv
from pcv.base.errors import PcvError
from pcv.base.keys import key
from pcv.folds.time import hv_block, leave_future_out
from pcv.models.checks.folds import check_gap
from pcv.models.checks.prior import check_prior
from pcv.models.model import Model, numeric, target
from pcv.models.parameters import flat_target, param_names
from pcv.models.zoo import air, grouped, radon
from pcv.pipeline.data import registry
from pcv.sampling.fit.fit_checks import check
from tests.bounds import z_limit
from tests.chains import off_printed, posterior
from tests.data import needs_data
from tests.slow import repeated

RNG = np.random.default_rng(1)
COUNTY = np.array([0, 0, 0, 1, 2, 2, 2, 2])
HOMES = {
    "log_radon": RNG.normal(1, 1, 8),
    "floor_measure": np.array([0, 1, 9, 0, 3, 1, 0, 9]),
    "log_uppm": RNG.normal(0, 1, 8),
    "unit": COUNTY,
}
MEMBERS = {
    "group": np.repeat([3, 5, 9], [2, 3, 1]),
    **{f"x{k}": np.repeat(RNG.normal(0, 10, 3), [2, 3, 1]) for k in (1, 2, 3, 4)},
    "y": RNG.normal(0, 3, 6),
}
PASSENGERS = {"month": np.arange(40) % 12 + 1, "outbound": np.exp(RNG.normal(10, 0.1, 40))}
MODELS = {
    "grouped, all": lambda: grouped.regression(MEMBERS),
    "grouped, three": lambda: grouped.regression(MEMBERS, covariates=3, priors="authors"),
    "radon, A": lambda: radon.varying_intercepts(HOMES),
    "radon, B": lambda: radon.varying_intercepts(HOMES, floor=False),
    "radon, authors": lambda: radon.varying_intercepts(HOMES, priors="authors"),
    "radon, cleaned": lambda: radon.varying_intercepts(HOMES, cleaned=True),
    "air, A": lambda: air.monthly(PASSENGERS),
    "air, B": lambda: air.yearly(PASSENGERS),
}


def drawn(model: Model, seed: int = 1) -> tuple[dict, dict[str, np.ndarray]]:
    params = model.init(jax.random.key(seed))
    return params, {name: np.asarray(x) for name, x in model.constrain(params).items()}


@pytest.mark.parametrize("name", MODELS)
def test_init_draws_from_the_prior(name):
    check_prior(MODELS[name](), 0, name)


@pytest.mark.parametrize("covariates", [3, 4])
@pytest.mark.parametrize(("priors", "scale"), [("paper", np.sqrt(10)), ("authors", 10)])
def test_grouped_densities(covariates, priors, scale):
    model = grouped.regression(MEMBERS, covariates, priors)
    params, theta = drawn(model)
    x = np.column_stack([MEMBERS[f"x{k + 1}"] for k in range(covariates)])
    group = np.repeat([0, 1, 2], [2, 3, 1])
    mean = theta["alpha"][group] + x @ theta["beta"]
    np.testing.assert_allclose(
        model.log_lik(params, MEMBERS), norm(mean, theta["sigma_y"]).logpdf(MEMBERS["y"])
    )
    scales = [theta["sigma_alpha"], theta["sigma_y"]]
    expected = (
        norm(0, 1).logpdf(theta["mu"])
        + norm(0, 1).logpdf(theta["beta"]).sum()
        + norm(theta["mu"], theta["sigma_alpha"]).logpdf(theta["alpha"]).sum()
        + halfnorm(0, scale).logpdf(scales).sum()
        + np.log(scales).sum()  # of exp
    )
    assert float(model.log_prior(params)) == pytest.approx(float(expected))
    test = jnp.array([2, 3, 4, -1])
    joint, pointwise = model.marginal(params, numeric(MEMBERS), test)
    cov = theta["sigma_alpha"] ** 2 + theta["sigma_y"] ** 2 * np.eye(3)
    center = theta["mu"] + (x @ theta["beta"])[2:5]
    y = MEMBERS["y"][2:5]
    assert float(joint) == pytest.approx(multivariate_normal(center, cov).logpdf(y))
    np.testing.assert_allclose(pointwise[:3], norm(center, np.sqrt(cov[0, 0])).logpdf(y))
    assert pointwise[3] == 0


def homes_of(cleaned: bool, floor: bool, uranium: bool) -> tuple[np.ndarray, np.ndarray]:
    """Covariates of the homes, and which of them count."""
    code = HOMES["floor_measure"].astype(float)
    kept = code != 9 if cleaned else np.ones(8, bool)
    columns = [np.minimum(code, 1) if cleaned else code] * floor + [HOMES["log_uppm"]] * uranium
    return np.column_stack([*columns, np.empty((8, 0))]), kept


@pytest.mark.parametrize("priors", ["paper", "authors"])
@pytest.mark.parametrize("floor", [True, False])
@pytest.mark.parametrize("cleaned", [True, False])
def test_radon_on_sums_is_radon_home_by_home(priors, floor, cleaned):
    model = radon.varying_intercepts(HOMES, floor, priors, cleaned)
    params, theta = drawn(model, 2)
    x, kept = homes_of(cleaned, floor, priors == "authors")
    y, line = HOMES["log_radon"], x @ theta["beta"]
    homes = norm(theta["alpha"][COUNTY] + line, theta["sigma_y"]).logpdf(y)
    of_county = np.bincount(COUNTY[kept], homes[kept], 3)
    np.testing.assert_allclose(model.log_lik(params, HOMES), of_county, rtol=1e-10)
    joint, pointwise = model.marginal(params, HOMES, jnp.array([0, 2, -1]))
    for county, score in ((0, pointwise[0]), (2, pointwise[1])):
        own = kept & (county == COUNTY)
        cov = theta["sigma_alpha"] ** 2 + theta["sigma_y"] ** 2 * np.eye(own.sum())
        expected = multivariate_normal(theta["mu"] + line[own], cov).logpdf(y[own])
        assert float(score) == pytest.approx(expected)
    assert float(joint) == pytest.approx(float(pointwise.sum()))
    assert pointwise[2] == 0


@pytest.mark.parametrize("priors", ["paper", "authors"])
def test_radon_priors(priors):
    model = radon.varying_intercepts(HOMES, priors=priors)
    params, theta = drawn(model, 3)
    sigma = np.array([theta["sigma_alpha"], theta["sigma_y"]])
    of = gamma([6, 10], scale=[1 / 9, 1 / 10])
    scales = of.logpdf(sigma**2) + np.log(2 * sigma) if priors == "paper" else of.logpdf(sigma)
    expected = (
        scales.sum()
        + np.log(sigma).sum()  # of exp
        + norm(0, 4).logpdf(theta["mu"])
        + norm(0, 1).logpdf(theta["beta"]).sum()
        + norm(0, 1).logpdf(theta["z"]).sum()
    )
    assert float(model.log_prior(params)) == pytest.approx(float(expected))


@pytest.mark.parametrize(("make", "span", "lags"), [(air.monthly, 1, 12), (air.yearly, 12, 3)])
def test_air_densities(make, span, lags):
    model = make(PASSENGERS, scale="growth")
    params, theta = drawn(model)
    level = PASSENGERS["outbound"]
    growth = np.full(40, np.nan)
    growth[span:] = level[span:] / level[:-span] - 1
    terms = np.zeros(40)
    for t in range(span + lags, 40):
        month = PASSENGERS["month"][t]
        mean = theta["beta"][0] + theta["rho"] @ growth[t - 1 - np.arange(lags)]
        if span == 1 and month > 1:
            mean += theta["beta"][month - 1]
        terms[t] = norm(mean, theta["sigma"]).logpdf(growth[t])
    np.testing.assert_allclose(model.log_lik(params, PASSENGERS), terms, rtol=1e-9)
    rho = theta["rho"]
    expected = (
        norm(0, 1).logpdf(theta["beta"]).sum()
        + (beta(5, 5).logpdf((rho + 1) / 2) - np.log(2)).sum()
        + halfnorm(0, 1).logpdf(theta["sigma"])
        + np.log(theta["sigma"])  # of exp
        + np.log((1 - rho**2) / 2).sum()  # of 2 / (1 + exp(-u)) - 1
    )
    assert float(model.log_prior(params)) == pytest.approx(float(expected))


def test_air_on_the_scale_of_passengers():
    """Growth has a density of its own; times |dg/dL| it is one of passengers, over any span."""
    models = [make(PASSENGERS, scale=scale) for make in (air.monthly, air.yearly)
              for scale in ("growth", "passengers")]  # fmt: skip
    names = [str(model.outcome) for model in models]
    assert names[1] == names[3] == "outbound"
    assert len(set(names)) == 3
    for span, growth, level in ((1, *models[:2]), (12, *models[2:])):
        params, _ = drawn(growth)
        less = growth.log_lik(params, PASSENGERS) - level.log_lik(params, PASSENGERS)
        there = np.arange(40) >= {1: 13, 12: 15}[span]
        expected = np.where(there, np.log(np.roll(PASSENGERS["outbound"], span)), 0.0)
        np.testing.assert_allclose(less, expected, rtol=1e-9)


# Growth over s months with p lags reaches back s + p months
GAPS = [
    (air.monthly, 12, True),
    (air.monthly, 13, False),
    (air.yearly, 14, True),
    (air.yearly, 15, False),
]


@pytest.mark.parametrize(("make", "h", "leaks"), GAPS)
def test_a_gap_shorter_than_the_lags_is_told(make, h, leaks):
    data = PASSENGERS | {"unit": np.arange(40)}
    names = [f"month {t}" for t in range(40)]
    arguments = make, data, "outbound"
    assert check_gap(*arguments, leave_future_out(names, 16), names, "air") == ""
    words = check_gap(*arguments, hv_block(names, 1, h), names, "air")
    told = "model 'air': terms of 1 unit(s) that fold 'month 19 to month 21' trains on"
    assert words.startswith(told) == leaks
    assert bool(words) == leaks


def test_densities_of_growth_over_other_spans_are_not_compared():
    models = {"monthly": air.monthly, "yearly": air.yearly}
    made = {name: make(PASSENGERS, scale="growth") for name, make in models.items()}
    with pytest.raises(PcvError) as refused:
        pcv.cross_validate(
            made, pcv.leave_future_out(40, 30), data=PASSENGERS, draws=20, progress=False
        )
    assert "models have different outcomes (monthly: growth over 1(outbound), yearly: " in str(
        refused.value
    )


# The registered data and the posteriors that the authors printed


@cache
def registered(name: str, folder: Path) -> pd.DataFrame:
    registry.fetch(name, folder / f"{name}.csv")
    return pd.read_csv(folder / f"{name}.csv")


PRINTED = {
    "air B": {
        "sigma": (0.048, 0.0005),
        "rho[2]": (0.174, 0.0005),
        "rho[1]": (0.026, 0.0005),
        "rho[0]": (0.557, 0.0005),
    },
    "air A": {"sigma": (0.037, 0.0005), "rho[11]": (0.267, 0.0005), "rho[0]": (-0.424, 0.0005)},
    "radon B": {"sigma_alpha": (0.573, 0.0005), "sigma_y": (0.930, 0.0005)},
}
"""posterior means and their rounding, as printed by the authors of PCV for their priors; their
first coefficient is that of the longest lag"""


FITTED = {
    "radon B": lambda data: radon.varying_intercepts(data, floor=False, priors="authors"),
    "radon A": lambda data: radon.varying_intercepts(data, priors="authors"),
    "air A": lambda data: air.monthly(data, scale="growth"),
    "air B": lambda data: air.yearly(data, scale="growth"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("registered")


@cache
def draws_of(name: str, folder: Path) -> dict[str, np.ndarray]:
    """Of the full-data posterior (chain, draw), vectors entry by entry."""
    if name.startswith("radon"):
        table = registered("radon", folder)
        data = {c: table[c].to_numpy() for c in table}
        data["unit"] = np.unique(data["county_idx"], return_inverse=True)[1]
        num_units = 386
    else:
        table = registered("air_passengers", folder)
        data = {c: table[c].to_numpy() for c in table} | {"unit": np.arange(len(table))}
        num_units = 420
    model = FITTED[name](data)
    named = target(model, data, "plain")
    flat, unravel = flat_target(named)
    draws = posterior(flat, num_units, key(1, name, "fit"), 2000)
    assert not check(draws, param_names(named)).problems
    theta = jax.vmap(jax.vmap(lambda position: model.constrain(unravel(position))))(draws.position)
    found = {}
    for variable, x in theta.items():
        entries = {f"[{i}]": x[..., i] for i in range(x.shape[2])} if x.ndim > 2 else {"": x}
        found |= {variable + index: np.asarray(entry) for index, entry in entries.items()}
    return found


@needs_data
@pytest.mark.parametrize("name", repeated(PRINTED))
def test_posterior_means_are_those_printed(name, folder):
    assert off_printed(draws_of(name, folder), PRINTED[name]) < z_limit(len(PRINTED[name]))


@needs_data
def test_posterior_means_of_another_model_are_not_those_printed(folder):
    # False alarm < 1e-4: tens of MCSEs.
    assert off_printed(draws_of("air A", folder), PRINTED["air B"]) > z_limit(len(PRINTED["air B"]))
