r"""The one table of problems with exact answers: model, data, folds, closed form.

Every model is conjugate, so the evidence :math:`\log p(y_A)` of any set A of units has a closed
form, and with it whatever cross-validation estimates:

.. math:: \log p(y_\mathrm{test} \mid y_\mathrm{train}) =
          \log p(y_\mathrm{train}, y_\mathrm{test}) - \log p(y_\mathrm{train})

The models are written as a user would; the closed forms are NumPy and know nothing of them.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Bool, Float, Int
from scipy.special import betaln, gammaln
from scipy.stats import Covariance, multivariate_normal

from pcv.folds.base import Folds, from_labels, from_sets, train_mask
from pcv.folds.exchangeable import leave_one_group_out, leave_one_out
from pcv.folds.time import hv_block, leave_future_out
from pcv.models.model import Model, Outcome, Target, support
from pcv.models.normal import normal_target
from pcv.models.zoo.rats import gaussian_predictive


class Problem(NamedTuple):
    """A model of some data, the schemes of its folds, and what they must give."""

    model: Model | Target
    data: dict[str, np.ndarray]
    schemes: dict[str, Folds]
    evidence: Callable[[Bool[np.ndarray, " unit"]], float]
    """log density of the units of a set, parameters integrated out"""
    posterior: Callable[[np.random.Generator, int], dict[str, np.ndarray]]
    """exact draws of the parameters given all units, on the unconstrained scale"""
    predictive: str = "plain"
    form: "LinearGaussian | None" = None
    """of linear Gaussian problems: moments of any predictive"""


class Exact(NamedTuple):
    """The exact elpd of every fold, and of every unit that it leaves out."""

    joint: Float[np.ndarray, " fold"]
    pointwise: Float[np.ndarray, "fold slot"]


def side_by_side(schemes: dict[str, Folds]) -> tuple[Folds, np.ndarray]:
    """The folds of several schemes as if of one, and the scheme of each."""
    slots, runs = (max(f[i].shape[1] for f in schemes.values()) for i in (1, 2))
    folds = Folds(
        np.concatenate([[f"{name}, {fold}" for fold in f.id] for name, f in schemes.items()]),
        np.concatenate([_widened(f.test, slots, -1) for f in schemes.values()]),
        np.concatenate([_widened(f.held_out, runs, 0) for f in schemes.values()]),
    )
    return folds, np.repeat(list(schemes), [len(f.id) for f in schemes.values()])


def _widened(x: np.ndarray, size: int, fill: int) -> np.ndarray:
    widths = [(0, 0), (0, size - x.shape[1])] + [(0, 0)] * (x.ndim - 2)
    return np.pad(x, widths, constant_values=fill)


def exact(problem: Problem, folds: Folds) -> Exact:
    """Closed forms of all folds; NaN in padded slots."""
    joint, pointwise = np.empty(len(folds.id)), np.full(folds.test.shape, np.nan)
    units = np.arange(len(problem.data["y"]))
    for k, train in enumerate(train_mask(folds, len(units))):
        known = problem.evidence(train)
        joint[k] = problem.evidence(train | np.isin(units, folds.test[k])) - known
        for slot, unit in enumerate(folds.test[k]):
            if unit >= 0:
                pointwise[k, slot] = problem.evidence(train | (units == unit)) - known
    return Exact(joint, pointwise)


class LinearGaussian(NamedTuple):
    """y ~ N(design θ, noise²) with θ ~ N(mean, cov): any set of y is normal, and so is θ."""

    y: Float[np.ndarray, " unit"]
    design: Float[np.ndarray, "unit param"]
    noise: float
    mean: Float[np.ndarray, " param"]
    cov: Float[np.ndarray, "param param"]

    def evidence(self, units: Bool[np.ndarray, " unit"]) -> float:
        design = self.design[units]
        cov = design @ self.cov @ design.T + self.noise**2 * np.eye(len(design))
        # SciPy's own factor is that of eigenvalues, which takes much longer.
        factor = Covariance.from_cholesky(np.linalg.cholesky(cov))
        return multivariate_normal.logpdf(self.y[units], design @ self.mean, factor)

    def posterior(self, rng: np.random.Generator, size: int) -> Float[np.ndarray, "draw param"]:
        return rng.multivariate_normal(*self.given(np.full(len(self.y), True)), size)

    def given(
        self, units: Bool[np.ndarray, " unit"]
    ) -> tuple[Float[np.ndarray, " param"], Float[np.ndarray, "param param"]]:
        """Mean and covariance of θ given some units."""
        design, y = self.design[units], self.y[units]
        precision = np.linalg.inv(self.cov)
        cov = np.linalg.inv(precision + design.T @ design / self.noise**2)
        return cov @ (precision @ self.mean + design.T @ y / self.noise**2), cov

    def predictive(
        self, train: Bool[np.ndarray, " unit"], test: Int[np.ndarray, " test"]
    ) -> tuple[Float[np.ndarray, " test"], Float[np.ndarray, "test test"]]:
        """Mean and covariance of the units of `test` given those of `train`."""
        mean, cov = self.given(train)
        new = self.design[test]
        return new @ mean, new @ cov @ new.T + self.noise**2 * np.eye(len(test))


GROUP_OF_UNIT = np.repeat(np.arange(5), [2, 3, 4, 3, 2])


def normal_means() -> Problem:
    """Groups' means, each with its own prior: θ_g ~ N(1, 2), y_i ~ N(θ_g, 1)."""
    rng = np.random.default_rng(1)
    group = GROUP_OF_UNIT
    data = {"y": rng.normal(rng.normal(1, 2, 5)[group], 1), "group": group}

    model = Model(
        init=lambda key: {"theta": dist.Normal(1.0, 2.0).sample(key, (5,))},
        log_prior=lambda params: dist.Normal(1.0, 2.0).log_prob(params["theta"]).sum(),
        log_lik=lambda params, data: dist.Normal(params["theta"][data["group"]], 1.0).log_prob(
            data["y"]
        ),
        constrain=lambda params: params,
        outcome=Outcome("y"),
    )
    form = LinearGaussian(data["y"], np.eye(5)[group], 1.0, np.full(5, 1.0), 4 * np.eye(5))
    return Problem(
        model,
        data,
        schemes_of(group, "leave one out", "k-fold"),
        form.evidence,
        lambda rng, size: {"theta": form.posterior(rng, size)},
    )


def regression() -> Problem:
    """Linear regression with a known σ: β ~ N(0, 1.5), α ~ N(3, 2), y_i ~ N(α + x_i β, 0.8)."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(14, 2))
    data = {"y": rng.normal(2 + x @ [1.0, -0.5], 0.8), "x": x}

    def init(key):
        of_alpha, of_beta = jax.random.split(key)
        alpha = dist.Normal(3.0, 2.0).sample(of_alpha)
        return {"alpha": alpha, "beta": dist.Normal(0.0, 1.5).sample(of_beta, (2,))}

    def log_prior(params):
        alpha = dist.Normal(3.0, 2.0).log_prob(params["alpha"])
        return alpha + dist.Normal(0.0, 1.5).log_prob(params["beta"]).sum()

    def log_lik(params, data):
        mean = params["alpha"] + data["x"] @ params["beta"]
        return dist.Normal(mean, 0.8).log_prob(data["y"])

    design = np.column_stack([np.ones(14), x])
    prior_sd = np.array([2.0, 1.5, 1.5])
    form = LinearGaussian(data["y"], design, 0.8, np.array([3.0, 0, 0]), np.diag(prior_sd**2))

    def posterior(rng, size):
        theta = form.posterior(rng, size)
        return {"alpha": theta[:, 0], "beta": theta[:, 1:]}

    model = Model(init, log_prior, log_lik, lambda params: params, Outcome("y"))
    schemes = schemes_of(GROUP_OF_UNIT, "leave one out", "k-fold", "groups", "gaps")
    return Problem(model, data, schemes, form.evidence, posterior, form=form)


def autoregression() -> Problem:
    """AR(2), y_0 and y_1 given: ρ ~ N(0, 0.7), y_t ~ N(ρ_1 y_{t-1} + ρ_2 y_{t-2}, 0.5).

    Units are the months after the first two; a term is conditional on the values before it.
    """
    rng = np.random.default_rng(6)
    series = list(rng.normal(size=2))
    for _ in range(18):
        series.append(rng.normal(0.6 * series[-1] - 0.3 * series[-2], 0.5))
    y = np.array(series)
    design = np.column_stack([y[1:-1], y[:-2]])
    data = {"y": y[2:], "lags": design}
    prior = dist.Normal(0.0, 0.7)

    model = Model(
        init=lambda key: {"rho": prior.sample(key, (2,))},
        log_prior=lambda params: prior.log_prob(params["rho"]).sum(),
        log_lik=lambda params, data: dist.Normal(data["lags"] @ params["rho"], 0.5).log_prob(
            data["y"]
        ),
        constrain=lambda params: params,
        outcome=Outcome("y"),
    )
    form = LinearGaussian(data["y"], design, 0.5, np.zeros(2), 0.7**2 * np.eye(2))
    names = [f"month {i + 1}" for i in range(18)]
    schemes = {
        "one step ahead": leave_future_out(names, 6),
        "three steps ahead": leave_future_out(names, 6, forecast_horizon=3, step=3),
        "hv-block": hv_block(names, v=1, h=2),
    }
    return Problem(
        model, data, schemes, form.evidence, lambda rng, size: {"rho": form.posterior(rng, size)}
    )


def autoregressions() -> Problem:
    """AR(1) of three patients with levels of their own and one ρ, the first value of each given:
    a_s ~ N(0, 1), ρ ~ N(0, 0.7), y_st ~ N(a_s + ρ y_s,t-1, 0.5).

    Patients take turns in the data; a term is conditional on the patient's own value before it.
    """
    rng, visits = np.random.default_rng(12), 7
    y = rng.normal(size=(1, 3))
    for _ in range(visits):
        y = np.vstack([y, rng.normal([0.8, -0.5, 0.1] + 0.5 * y[-1], 0.5)])
    patient, visit = np.tile(np.arange(3), visits), np.repeat(np.arange(visits), 3)
    data = {"y": y[1:].ravel(), "before": y[:-1].ravel(), "patient": patient}
    level, rho = dist.Normal(0.0, 1.0), dist.Normal(0.0, 0.7)

    def log_lik(params, data):
        mean = params["level"][data["patient"]] + params["rho"] * data["before"]
        return dist.Normal(mean, 0.5).log_prob(data["y"])

    model = Model(
        lambda key: {"level": level.sample(key, (3,)), "rho": rho.sample(key)},
        lambda params: level.log_prob(params["level"]).sum() + rho.log_prob(params["rho"]),
        log_lik,
        lambda params: params,
        Outcome("y"),
    )
    design = np.column_stack([np.eye(3)[patient], data["before"]])
    form = LinearGaussian(data["y"], design, 0.5, np.zeros(4), np.diag([1.0, 1, 1, 0.7**2]))

    def posterior(rng, size):
        theta = form.posterior(rng, size)
        return {"level": theta[:, :3], "rho": theta[:, 3]}

    names = [f"patient {who + 1}, visit {when + 1}" for who, when in zip(patient, visit)]
    schemes = {
        "one visit ahead": leave_future_out(names, 3, by=patient, time=visit),
        "two visits ahead": leave_future_out(names, 3, horizon=2, step=2, by=patient, time=visit),
    }
    return Problem(model, data, schemes, form.evidence, posterior)


def hierarchy(predictive: str) -> Problem:
    """Groups' means of one population: μ ~ N(0, 3), θ_g ~ N(μ, 1.2), y_i ~ N(θ_g, 1).

    A group is left out as a whole: its mean is drawn with the others, or integrated out.
    """
    rng = np.random.default_rng(3)
    group = GROUP_OF_UNIT
    data = {"y": rng.normal(rng.normal(2, 1.2, 5)[group], 1), "group": group}

    def init(key):
        of_mu, of_theta = jax.random.split(key)
        mu = dist.Normal(0.0, 3.0).sample(of_mu)
        return {"mu": mu, "theta": dist.Normal(mu, 1.2).sample(of_theta, (5,))}

    def log_prior(params):
        theta = dist.Normal(params["mu"], 1.2).log_prob(params["theta"])
        return dist.Normal(0.0, 3.0).log_prob(params["mu"]) + theta.sum()

    def log_lik(params, data):
        return dist.Normal(params["theta"][data["group"]], 1.0).log_prob(data["y"])

    def marginal_moments(params, data, test):
        same_group = data["group"][test][:, None] == data["group"][test]
        return jnp.full(test.size, params["mu"]), 1.2**2 * same_group + jnp.eye(test.size)

    def marginal(params, data, test):
        return gaussian_predictive(
            data["y"][test], *marginal_moments(params, data, test), test >= 0
        )

    def marginal_predict(key, params, data, test):
        return dist.MultivariateNormal(*marginal_moments(params, data, test)).sample(key)

    design = np.column_stack([np.zeros(len(group)), np.eye(5)[group]])
    cov = np.full((6, 6), 9.0) + np.diag([0.0, *np.full(5, 1.2**2)])
    form = LinearGaussian(data["y"], design, 1.0, np.zeros(6), cov)

    def posterior(rng, size):
        theta = form.posterior(rng, size)
        return {"mu": theta[:, 0], "theta": theta[:, 1:]}

    constrain = lambda params: params  # noqa: E731
    model = Model(
        init,
        log_prior,
        log_lik,
        constrain,
        Outcome("y", discrete=False),
        marginal,
        group,
        marginal_predict=marginal_predict,
        marginal_moments=marginal_moments,
    )
    schemes = schemes_of(group, "groups")
    return Problem(model, data, schemes, form.evidence, posterior, predictive, form)


def narrow_effects(noise: float = 0.05) -> Problem:
    """Groups with covariates, whose effects all units tell far better than their prior does: μ ~
    N(0, 1), β ~ N(0, 1), θ_g ~ N(μ, 2), y_i ~ N(θ_g + x_gᵀβ, noise), one group left out at a time.
    """
    rng = np.random.default_rng(8)
    groups, members, size = 25, 4, 3
    group = np.repeat(np.arange(groups), members)
    x = rng.normal(0, 5, (groups, size))[group]
    y = rng.normal(0, 2, groups)[group] + x.sum(1) + noise * rng.normal(size=len(group))
    data = {"y": y, "group": group, "x": x}

    def init(key):
        of_theta, of_beta, of_mu = jax.random.split(key, 3)
        mu = jax.random.normal(of_mu)
        theta = mu + 2 * jax.random.normal(of_theta, (groups,))
        return {"beta": jax.random.normal(of_beta, (size,)), "mu": mu, "theta": theta}

    def log_prior(params):
        theta = dist.Normal(params["mu"], 2.0).log_prob(params["theta"])
        one = dist.Normal(0.0, 1.0)
        return one.log_prob(params["mu"]) + one.log_prob(params["beta"]).sum() + theta.sum()

    def log_lik(params, data):
        mean = params["theta"][data["group"]] + data["x"] @ params["beta"]
        return dist.Normal(mean, noise).log_prob(data["y"])

    def marginal(params, data, test):
        same_group = data["group"][test][:, None] == data["group"][test]
        mean = params["mu"] + data["x"][test] @ params["beta"]
        cov = 2.0**2 * same_group + noise**2 * jnp.eye(test.size)
        return gaussian_predictive(data["y"][test], mean, cov, test >= 0)

    design = np.column_stack([x, np.zeros(len(group)), np.eye(groups)[group]])
    cov = np.eye(size + 1 + groups)
    cov[size:, size:] = 1.0
    cov[size + 1 :, size + 1 :] += 2.0**2 * np.eye(groups)
    form = LinearGaussian(y, design, noise, np.zeros(len(cov)), cov)

    def posterior(rng, size_of_it):
        drawn = form.posterior(rng, size_of_it)
        return {"beta": drawn[:, :size], "mu": drawn[:, size], "theta": drawn[:, size + 1 :]}

    constrain = lambda params: params  # noqa: E731
    outcome = Outcome("y", discrete=False)
    model = Model(init, log_prior, log_lik, constrain, outcome, marginal, group)
    schemes = {"leave one group out": leave_one_group_out(group, "group")}
    return Problem(model, data, schemes, form.evidence, posterior, "marginal", form)


def variance(jacobian: bool = True) -> Problem:
    """An unknown variance, conjugate: v ~ InverseGamma(3, 4), y_i ~ N(0, √v)."""
    rng = np.random.default_rng(4)
    data = {"y": rng.normal(0, 1.5, 14)}
    prior = dist.InverseGamma(3.0, 4.0)
    space = support({"variance": dist.constraints.positive})

    def log_prior(params):
        log_density = prior.log_prob(space.constrain(params)["variance"])
        return log_density + (space.log_jacobian(params) if jacobian else 0.0)

    model = Model(
        init=lambda key: space.unconstrain({"variance": prior.sample(key)}),
        log_prior=log_prior,
        log_lik=lambda params, data: dist.Normal(
            0.0, jnp.sqrt(space.constrain(params)["variance"])
        ).log_prob(data["y"]),
        constrain=space.constrain,
        outcome=Outcome("y"),
    )

    def evidence(units):
        n, total = units.sum(), np.sum(data["y"][units] ** 2)
        return (
            gammaln(3 + n / 2)
            - gammaln(3)
            + 3 * np.log(4)
            - (3 + n / 2) * np.log(4 + total / 2)
            - n / 2 * np.log(2 * np.pi)
        )

    def posterior(rng, size):
        rate = 4 + np.sum(data["y"] ** 2) / 2
        return {"variance": np.log(rate / rng.gamma(3 + len(data["y"]) / 2, size=size))}

    return Problem(model, data, schemes_of(GROUP_OF_UNIT, "k-fold"), evidence, posterior)


def coin(jacobian: bool = True) -> Problem:
    """An unknown probability, conjugate: p ~ Beta(1, 2), y_i ~ Bernoulli(p)."""
    data = {"y": np.array([1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1])}
    prior = dist.Beta(1.0, 2.0)
    space = support({"p": dist.constraints.unit_interval})

    def log_prior(params):
        log_density = prior.log_prob(space.constrain(params)["p"])
        return log_density + (space.log_jacobian(params) if jacobian else 0.0)

    model = Model(
        init=lambda key: space.unconstrain({"p": prior.sample(key)}),
        log_prior=log_prior,
        log_lik=lambda params, data: dist.Bernoulli(space.constrain(params)["p"]).log_prob(
            data["y"]
        ),
        constrain=space.constrain,
        outcome=Outcome("y"),
    )

    def evidence(units):
        ones, n = data["y"][units].sum(), units.sum()
        return betaln(1 + ones, 2 + n - ones) - betaln(1, 2)

    def posterior(rng, size):
        ones, n = data["y"].sum(), len(data["y"])
        p = rng.beta(1 + ones, 2 + n - ones, size)
        return {"p": np.log(p) - np.log1p(-p)}

    return Problem(model, data, schemes_of(GROUP_OF_UNIT, "k-fold"), evidence, posterior)


def kriging(noise: float = 0.3) -> Problem:
    """A Gaussian process around an unknown mean.

    Args:
        noise: variance of it that the model has; the data's is 0.3.
    """
    rng = np.random.default_rng(7)
    x = np.sort(rng.uniform(0, 5, 14))
    smooth = np.exp(-((x[:, None] - x) ** 2) / 2)
    cov = smooth + 0.3 * np.eye(14)
    y = rng.multivariate_normal(np.full(14, 2.0), cov)
    schemes = schemes_of(GROUP_OF_UNIT, "leave one out", "groups", "gaps")
    found = _around_a_mean(y, cov, smooth + noise * np.eye(14), schemes)
    return found._replace(data={"y": y, "x": x})


def panel() -> Problem:
    """Local levels of three patients around an unknown one: random walks seen with noise.

    Patients take turns in the data, and have different numbers of visits.
    """
    rng = np.random.default_rng(9)
    visits = np.array([6, 5, 4])
    patient = np.argsort(np.concatenate([np.arange(k) for k in visits]), kind="stable")
    patient = np.repeat(np.arange(3), visits)[patient]
    time = np.array([np.sum(patient[:i] == patient[i]) for i in range(patient.size)])
    walk = 1.0 + np.minimum(time[:, None], time)
    cov = np.where(patient[:, None] == patient, walk, 0.0) + 0.2 * np.eye(patient.size)
    y = rng.multivariate_normal(np.full(patient.size, 2.0), cov)
    names = [f"patient {who + 1}, visit {when + 1}" for who, when in zip(patient, time)]
    schemes = {
        "one visit ahead": leave_future_out(names, 2, by=patient, time=time),
        "two visits ahead": leave_future_out(names, 2, 2, 2, window=2, by=patient, time=time),
    }
    return _around_a_mean(y, cov, cov, schemes)


def _around_a_mean(
    y: np.ndarray, cov: np.ndarray, model_cov: np.ndarray, schemes: dict[str, Folds]
) -> Problem:
    """μ ~ N(1, 2), y ~ N(μ, K), with K known; the model may have another than the truth."""
    prior, n = dist.Normal(1.0, 2.0), len(y)
    target = normal_target(
        init=lambda key: {"mu": prior.sample(key)},
        log_prior=lambda params: prior.log_prob(params["mu"]),
        moments=lambda params: (jnp.full(n, params["mu"]), model_cov),
        constrain=lambda params: params,
        outcome=Outcome("y"),
        y=y,
    )

    def evidence(units):
        within = cov[np.ix_(units, units)] + 4.0
        return multivariate_normal(np.full(units.sum(), 1.0), within).logpdf(y[units])

    def posterior(rng, size):
        weights = np.linalg.solve(cov, np.ones(n))
        precision = 1 / 4 + weights.sum()
        mean = (1 / 4 + weights @ y) / precision
        return {"mu": rng.normal(mean, precision**-0.5, size)}

    return Problem(target, {"y": y}, schemes, evidence, posterior)


def schemes_of(group: np.ndarray, *chosen: str) -> dict[str, Folds]:
    """Schemes by name, for units in groups of several sizes."""
    n = len(group)
    names = [f"unit {i + 1}" for i in range(n)]
    runs = np.array_split(np.arange(n), 4)
    beside = [np.array([i for i in (run[0] - 1, run[-1] + 1) if 0 <= i < n]) for run in runs]
    dealt = np.random.default_rng(5).permutation(np.arange(n) % 4)
    schemes = {
        "leave one out": leave_one_out(names),
        "k-fold": from_labels(dealt, [f"fold {k + 1}" for k in range(4)]),
        "groups": leave_one_group_out(group, "group"),
        "gaps": from_sets([f"run {k + 1}" for k in range(4)], runs, beside, n),
    }
    return {name: schemes[name] for name in chosen}


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "hierarchy, plain": lambda: hierarchy("plain"),
    "hierarchy, marginal": lambda: hierarchy("marginal"),
    "variance": variance,
    "autoregressions": autoregressions,
    "coin": coin,
    "regression": regression,
    "normal means": normal_means,
    "autoregression": autoregression,
    "kriging": kriging,
    "panel": panel,
}
