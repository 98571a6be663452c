"""A left-out group's own effects: which they are, and their integrals against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from jax.flatten_util import ravel_pytree
from scipy.integrate import quad
from scipy.special import gammaln
from scipy.stats import multivariate_normal, norm
from scipy.stats import poisson as scipy_poisson

from pcv.base.errors import PcvError
from pcv.base.monitor import Monitor
from pcv.core.psis import NODES_PER_DIM
from pcv.folds.base import Folds, from_sets
from pcv.folds.exchangeable import kfold, leave_one_group_out, leave_one_out
from pcv.models.effects import decoupling, effects, marginal, second_look
from pcv.models.effects.effects import find
from pcv.models.effects.laplace import laplace, normal, normal_log_mean
from pcv.models.effects.marginal import choose, sliceable
from pcv.models.frontends.numpyro import from_numpyro
from pcv.models.model import Fold, Model, Outcome, numeric, support, target
from pcv.models.zoo import rats
from tests.bounds import z_limit
from tests.problems import GROUP_OF_UNIT, hierarchy, narrow_effects, regression
from tests.slow import repeated

UNITS = [str(i) for i in range(14)]
GROUPS = leave_one_group_out(GROUP_OF_UNIT, "group")
DRAWS = 200


def given(data):
    return {**data, "unit": np.arange(len(data["y"] if "y" in data else data["weight_g"]))}


def rats_data():
    frame = pd.read_csv("resources/rats.csv")
    return given({name: frame[name].to_numpy() for name in frame})


def near_the_posterior(key, data):
    """Values of the random slopes model as a fit of the rats finds them."""
    centre = {
        "mu_alpha": 242.0,
        "mu_beta": 6.2,
        "sigma_alpha": np.log(14.5),
        "sigma_beta": np.log(0.5),
        "sigma_y": np.log(6.1),
    }
    names = [*centre, "alpha", "beta"]
    keys = dict(zip(names, jax.random.split(key, len(names))))
    drawn = {
        name: value + (1.0 if name == "mu_alpha" else 0.1) * jax.random.normal(keys[name])
        for name, value in centre.items()
    }
    for name in ("alpha", "beta"):
        sd = jnp.exp(drawn[f"sigma_{name}"])
        drawn[name] = drawn[f"mu_{name}"] + sd * jax.random.normal(keys[name], (30,))
    return drawn


def integrated(model, data, local, folds, *nodes):
    few = marginal.sliceable(model, data, folds)
    return marginal.integrated(model, data, local, few, *nodes)


def of_folds(model: Model, data, params, folds: Folds):
    """Joint and pointwise marginal predictive of all folds at all draws."""
    arrays = numeric(data)

    def one(params, test):
        return model.marginal(params, arrays, test)

    every = jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))
    return jax.tree.map(np.asarray, every(params, jnp.asarray(folds.test)))


def gamma_poisson(jacobian: bool = True) -> tuple[Model, dict]:
    """Rates of groups from a gamma distribution: a left-out group is negative binomial."""
    data = given({"y": np.random.default_rng(3).poisson(4.0, 14), "group": GROUP_OF_UNIT})
    space = support({"rate": dist.constraints.positive})

    def log_prior(params):
        rate = space.constrain(params)["rate"]
        terms = dist.Gamma(2.0, jnp.exp(params["log_b"])).log_prob(rate).sum()
        return dist.Normal(0.0, 0.5).log_prob(params["log_b"]) + terms + space.log_jacobian(params)

    def init(key):
        of_b, of_rate = jax.random.split(key)
        b = 0.5 * jax.random.normal(of_b)
        return {
            "log_b": b,
            "rate": jnp.log(dist.Gamma(2.0, jnp.exp(b)).sample(of_rate, (5,)) + 1e-3),
        }

    def log_lik(params, data):
        rate = space.constrain(params)["rate"][data["group"]]
        return dist.Poisson(rate).log_prob(data["y"])

    return Model(init, log_prior, log_lik, space.constrain, Outcome("y")), data


def negative_binomial(b, y):
    """Log density of counts of a group whose rate is Gamma(2, b)."""
    n, total = len(y), y.sum()
    return (
        2 * np.log(b)
        - gammaln(2)
        + gammaln(2 + total)
        - (2 + total) * np.log(b + n)
        - gammaln(y + 1).sum()
    )


class TestWhatIsLocal:
    def test_effects_of_groups_that_are_left_out(self):
        model = rats.random_slopes(rats_data())
        folds = leave_one_group_out(rats_data()["rat"], "rat")
        local = find(model, rats_data(), folds)
        np.testing.assert_array_equal(
            local.entries, np.stack([np.arange(30), 30 + np.arange(30)]).T
        )
        assert (local.most, local.normal, local.exact) == (1, True, True)
        np.testing.assert_array_equal(local.group, np.repeat(np.arange(30), 5))
        several = kfold(len(rats_data()["rat"]), 10, group_by=rats_data()["rat"], seed=1)
        assert find(model, rats_data(), several).most == 3

    def test_none_where_part_of_a_group_is_trained_on(self):
        problem = hierarchy("plain")
        assert not len(find(problem.model, given(problem.data), leave_one_out(UNITS)).entries)
        half = from_sets(["a", "b"], [np.array([0, 1, 2]), np.arange(5, 9)], None, 14)
        local = find(problem.model, given(problem.data), half)
        assert (len(local.entries), local.constants) == (2, True)
        assert local.group[:3].tolist() == [0, 0, -1]
        both = from_sets(["a", "b"], [np.array([6, 7]), np.arange(5, 9)], None, 14)
        why = find(problem.model, given(problem.data), both)
        assert why == "a group is left out whole in one fold, and in part in another"

    def test_by_itself_only_where_every_fold_leaves_out_some(self):
        """Leave-one-out with a group of one unit stays plain, and fast."""
        problem = hierarchy("plain")
        arguments = problem.model._replace(marginal=None, group=None), "m", given(problem.data)
        folds = from_sets(["whole", "part"], [np.array([0, 1]), np.array([2, 3])], None, 14)
        assert choose("auto", *arguments, folds).predictive == "plain"
        assert choose("marginal", *arguments, folds).predictive == "marginal"
        whole = from_sets(["a", "b"], [np.array([0, 1, 5]), np.arange(2, 5)], None, 14)
        assert choose("auto", *arguments, whole).predictive == "marginal"

    def test_none_in_a_regression(self):
        problem = regression()
        local = find(problem.model, given(problem.data), problem.schemes["k-fold"])
        assert not len(local.entries)

    def test_crossed_effects(self):
        """Of subjects that are left out, not of the items that they share with others."""
        subject, item = np.repeat(np.arange(4), 3), np.tile(np.arange(3), 4)
        data = given({"y": np.random.default_rng(1).normal(size=12)})

        def log_lik(params, data):
            mean = params["subject"][subject] + params["item"][item]
            return dist.Normal(mean, 1.0).log_prob(data["y"])

        def log_prior(params):
            return sum(dist.Normal(0.0, 1.0).log_prob(x).sum() for x in params.values())

        def init(key):
            a, b = jax.random.split(key)
            return {"item": jax.random.normal(a, (3,)), "subject": jax.random.normal(b, (4,))}

        model = Model(init, log_prior, log_lik, lambda params: params, Outcome("y"))
        local = find(model, data, leave_one_group_out(subject, "subject"))
        np.testing.assert_array_equal(local.entries, 3 + np.arange(4)[:, None])
        local = find(model, data, leave_one_group_out(item, "item"))
        np.testing.assert_array_equal(local.entries, np.arange(3)[:, None])

    def test_effects_that_their_prior_ties_together_are_one_group(self):
        problem = hierarchy("plain")

        def tied(params):
            steps = params["theta"][1:] - params["theta"][:-1]
            return problem.model.log_prior(params) - (steps**2).sum()

        model = problem.model._replace(log_prior=tied)
        folds = from_sets(["two", "one"], [np.arange(5), np.arange(12, 14)], None, 14)
        local = find(model, given(problem.data), folds)
        assert local.entries.tolist() == [[1, 2], [5, 6]]
        assert local.most == 1


@pytest.mark.parametrize("several", [False, True])
def test_units_without_effects_are_constant_factors(several):
    """The first visit of each subject, at time 0, does not depend on its slope; a fold may test
    such visits alone."""
    subject, t = np.repeat(np.arange(4), 3), np.tile([0.0, 1.0, 2.0], 4)
    data = given({"y": np.random.default_rng(1).normal(size=12)})

    def log_prior(params):
        slopes = dist.Normal(0.0, jnp.exp(params["log_sd"])).log_prob(params["b"]).sum()
        return slopes + dist.Normal(0.0, 0.5).log_prob(params["log_sd"])

    def init(key):
        one, other = jax.random.split(key)
        log_sd = 0.5 * jax.random.normal(one)
        return {"b": jnp.exp(log_sd) * jax.random.normal(other, (4,)), "log_sd": log_sd}

    def log_lik(params, data):
        return dist.Normal(params["b"][subject] * t, 0.7).log_prob(data["y"])

    model = Model(init, log_prior, log_lik, lambda params: params, Outcome("y"))
    folds = leave_one_group_out(subject, "subject")
    tests = [np.flatnonzero(subject == i) for i in range(4)]
    if several:
        tests = [np.arange(6), np.array([6, 7, 8, 9]), np.array([10, 11])]
        folds = from_sets(list("abc"), tests, None, 12)
    local = find(model, data, folds)
    assert local.exact
    assert local.constants
    params = jax.vmap(model.init)(jax.random.split(jax.random.key(2), 20))
    joint, pointwise = of_folds(integrated(model, data, local, folds), data, params, folds)
    for i, sd in enumerate(np.exp(np.asarray(params["log_sd"]))):
        for k, units in enumerate(tests):
            alike = subject[units][:, None] == subject[units]
            cov = sd**2 * np.outer(t[units], t[units]) * alike + 0.49 * np.eye(len(units))
            exact = multivariate_normal.logpdf(data["y"][units], np.zeros(len(units)), cov)
            assert joint[i, k] == pytest.approx(exact, abs=1e-9)
            each = norm.logpdf(data["y"][units], 0, np.sqrt(np.diag(cov)))
            np.testing.assert_allclose(pointwise[i, k, : len(units)], each, atol=1e-9)


ON_A_GRID, EXACTLY = {"exact": False}, {"exact": True}


@pytest.mark.parametrize(
    ("how", "error"), [(EXACTLY, 1e-9), pytest.param(ON_A_GRID, 5e-3, marks=pytest.mark.slow)]
)
def test_one_effect_by_group(how, error):
    problem = hierarchy("marginal")
    model, data = problem.model, given(problem.data)
    params = jax.vmap(model.init)(jax.random.split(jax.random.key(1), DRAWS))
    found = integrated(model, data, find(model, data, GROUPS)._replace(**how), GROUPS)
    exact = of_folds(model, data, params, GROUPS)
    for mine, theirs in zip(of_folds(found, data, params, GROUPS), exact):
        np.testing.assert_allclose(mine, theirs, atol=error)
        assert abs(np.mean(np.exp(mine - theirs)) - 1) < 1e-5
    three = from_sets(["0 and 2", "1"], [np.r_[0, 1, 5:9], np.arange(2, 5)], None, 14)
    found = integrated(model, data, find(model, data, three)._replace(**how), three)
    for mine, theirs in zip(
        of_folds(found, data, params, three), of_folds(model, data, params, three)
    ):
        np.testing.assert_allclose(mine, theirs, atol=error)


def test_normal_outcomes_are_integrated_exactly():
    """Intercept and slope of each rat, wherever the chain has them; of one and of several."""
    data = rats_data()
    model = rats.random_slopes(data)
    keys = jax.random.split(jax.random.key(5), DRAWS)
    params = jax.vmap(lambda key: near_the_posterior(key, data))(keys)
    moved = {**params, "alpha": params["alpha"] + 1e3, "beta": params["beta"] - 100}
    several = kfold(len(data["rat"]), 10, group_by=data["rat"], seed=1)
    for folds in (leave_one_group_out(data["rat"], "rat"), several):
        found = integrated(model, data, find(model, data, folds), folds)
        exact = of_folds(model, data, params, folds)
        for mine, theirs in zip(of_folds(found, data, moved, folds), exact):
            np.testing.assert_allclose(mine, theirs, atol=1e-6)


@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-9), ("float32", 1e-3)])
def test_far_from_the_mode_no_digits_are_lost(dtype, error):
    x, y = np.linspace(-1, 1, 6), 0.1 * np.random.default_rng(4).normal(size=6)
    design = np.c_[np.ones(6), x]

    def terms(effects):
        mean = jnp.asarray(design, dtype) @ effects
        return jax.scipy.stats.norm.logpdf(jnp.asarray(y, dtype), mean, 0.1)

    def log_prior(effects):
        return jax.scipy.stats.norm.logpdf(effects).sum()

    joint, pointwise = normal_log_mean(log_prior, terms, jnp.asarray([30.0, -30.0], dtype))
    cov = design @ design.T + 0.01 * np.eye(6)
    assert joint == pytest.approx(multivariate_normal(np.zeros(6), cov).logpdf(y), abs=error)
    np.testing.assert_allclose(pointwise, norm.logpdf(y, 0, np.sqrt(np.diag(cov))), atol=error)


@pytest.mark.slow
def test_chains_are_spared_the_prior_of_left_out_effects_alone():
    """Its integral is taken out, as without the terms of that prior, and its gradient is right."""
    data = rats_data()
    model = rats.random_slopes(data)
    several = kfold(len(data["rat"]), 10, group_by=data["rat"], seed=1)
    keys = jax.random.split(jax.random.key(5), 20)
    params = jax.vmap(lambda key: near_the_posterior(key, data))(keys)
    center = np.r_[np.full(30, 242.0), np.full(30, 6.2), 242.0, 6.2, np.log([14.5, 0.5, 6.1])]
    sd = np.r_[np.full(30, 2.0), np.full(30, 0.2), np.full(5, 0.1)]
    for folds in (leave_one_group_out(data["rat"], "rat"), several):
        how = choose("auto", model._replace(marginal=None, group=None), "rats", data, folds)
        assert decoupling.much_wider(how, center, sd**-2)
        chains = decoupling.decoupled(how, data, center, np.diag(sd**2)).model
        test = jnp.asarray(folds.test[3])
        own = np.unique(data["rat"][folds.test[3][folds.test[3] >= 0]]) - 1

        def by_hand(params):
            theta, total = params, model.log_prior(params)
            for name, place in (("alpha", 0), ("beta", 30)):
                prior = dist.Normal(theta[f"mu_{name}"], jnp.exp(theta[f"sigma_{name}"]))
                stay = dist.Normal(center[own + place], sd[own + place])  # noqa: B023
                total += stay.log_prob(theta[name][own]).sum()  # noqa: B023
                total -= prior.log_prob(theta[name][own]).sum()  # noqa: B023
            return total

        found, exact = (
            jax.vmap(jax.value_and_grad(f))(params)
            for f in (lambda x: chains.fold_prior(x, test), by_hand)  # noqa: B023
        )
        assert np.ptp(found[0] - exact[0]) < 1e-8
        for name in params:
            np.testing.assert_allclose(found[1][name], exact[1][name], rtol=1e-7, atol=1e-7)
        attached = jax.vmap(jax.grad(model.log_prior))(params)["mu_alpha"]
        assert np.abs(attached - exact[1]["mu_alpha"]).max() > 1e-3


@pytest.mark.slow
def test_what_is_not_normal_is_not_integrated_as_if_it_were():
    group, y = GROUP_OF_UNIT, np.random.default_rng(1).normal(size=14)
    outcomes = {
        "normal": lambda mean, y: dist.Normal(mean, 1.0).log_prob(y),
        "student": lambda mean, y: dist.StudentT(30.0, mean, 1.0).log_prob(y),
        "one censored": lambda mean, y: jnp.where(
            jnp.arange(14) == 13,
            jax.scipy.stats.norm.logcdf(mean - 0.5),
            dist.Normal(mean, 1.0).log_prob(y),
        ),
        "curved mean": lambda mean, y: dist.Normal(jnp.exp(mean / 5), 1.0).log_prob(y),
        "scale": lambda mean, y: dist.Normal(0.0, jnp.exp(mean)).log_prob(y),
        "laplace": lambda mean, y: dist.Laplace(mean, 1.0).log_prob(y),
        "quantile": lambda mean, y: dist.AsymmetricLaplaceQuantile(mean, 1.0, 0.9).log_prob(y),
        "folded mean": lambda mean, y: dist.Normal(jnp.abs(mean), 1.0).log_prob(y),
        "logistic": lambda mean, y: dist.BernoulliLogits(mean).log_prob(1.0 * (y > 0)),
    }
    problem = hierarchy("plain")
    for name, log_prob in outcomes.items():
        model = problem.model._replace(
            log_lik=lambda params, data: log_prob(params["theta"][group], data["y"])  # noqa: B023
        )
        data = given({"y": y})
        local = find(model, data, GROUPS)
        assert (local.normal, local.exact) == (True, name == "normal"), name
    params = jax.vmap(model.init)(jax.random.split(jax.random.key(1), DRAWS))
    right, taken = (
        of_folds(integrated(model, data, x, GROUPS), data, params, GROUPS)[0]
        for x in (local, local._replace(exact=True))
    )
    assert np.median(np.abs(taken - right)) > 0.02


def slopes_in_units(scale, effects):
    """A model with an intercept and a slope by group, of which the outcome and the intercepts are
    measured in another unit than the slopes."""
    group, x = np.repeat(np.arange(6), 5), np.tile(np.linspace(-1, 1, 5), 6)
    data = given({"y": scale * np.random.default_rng(3).normal(size=30), "group": group})

    def init(key):
        keys = jax.random.split(key, 3)
        return {
            "mu": scale * jax.random.normal(keys[0]),
            "a": 1.5 * scale * effects.sample(keys[1], (6,)),
            "b": 0.5 * effects.sample(keys[2], (6,)),
        }

    def log_prior(params):
        a, b = params["a"] / (1.5 * scale), params["b"] / 0.5
        of_groups = effects.log_prob(a).sum() + effects.log_prob(b).sum()
        return dist.Normal(0.0, scale).log_prob(params["mu"]) + of_groups

    def log_lik(params, data):
        mean = params["mu"] + params["a"][group] + scale * params["b"][group] * x
        return dist.Normal(mean, scale).log_prob(data["y"])

    model = Model(init, log_prior, log_lik, lambda params: params, Outcome("y"))
    return model, data, leave_one_group_out(group, "group"), x[:5]


@pytest.mark.slow
def test_integrals_are_the_same_in_any_unit_of_measurement():
    scale = 1e-6
    model, data, folds, x = slopes_in_units(scale, dist.Normal(0.0, 1.0))
    local = find(model, data, folds)
    assert local.normal
    params = jax.vmap(model.init)(jax.random.split(jax.random.key(2), DRAWS))
    cov = scale**2 * (2.25 + 0.25 * np.outer(x, x) + np.eye(5))
    shifted = data["y"].reshape(6, 5) - np.asarray(params["mu"])[:, None, None]
    exact = multivariate_normal(np.zeros(5), cov).logpdf(shifted)
    joint, _ = of_folds(integrated(model, data, local, folds), data, params, folds)
    np.testing.assert_allclose(joint, exact, atol=1e-6)
    by_nodes = integrated(model, data, local._replace(exact=False), folds, 64)
    ratio = np.exp(of_folds(by_nodes, data, params, folds)[0] - exact)
    error = (ratio.mean(0) - 1) / (ratio.std(0) / np.sqrt(DRAWS))
    assert np.abs(error).max() < z_limit(error.size, df=DRAWS - 1)
    assert ratio.std() < 0.2  # false alarm < 1e-4: .054, with an sd of .001
    assert not find(*slopes_in_units(scale, dist.StudentT(4.0))[:3]).normal


def one_large_group(prior):
    """A normal model whose only group of 1,000 has an effect, and a second group of one."""
    group = np.append(np.zeros(1000, int), 1)
    data = given({"y": 1.0 + np.random.default_rng(8).normal(size=1001), "group": group})
    model = Model(
        init=lambda key: {"u": prior.sample(key, (2,))},
        log_prior=lambda params: prior.log_prob(params["u"]).sum(),
        log_lik=lambda params, data: dist.Normal(params["u"][group], 1.0).log_prob(data["y"]),
        constrain=lambda params: params,
        outcome=Outcome("y"),
    )
    return model, data, leave_one_group_out(group, "group")


def test_single_units_of_a_large_group_vary_over_the_whole_prior():
    model, data, folds = one_large_group(dist.Normal(0.0, 1.0))
    params = jax.vmap(model.init)(jax.random.split(jax.random.key(2), 20))
    found = integrated(model, data, find(model, data, folds)._replace(exact=False), folds)
    _, pointwise = of_folds(found, data, params, folds)
    exact = norm.logpdf(data["y"][:1000], 0, np.sqrt(2))
    np.testing.assert_allclose(pointwise[:, 0, :1000], exact[None].repeat(20, 0), atol=2e-3)


@pytest.mark.parametrize(
    "prior", [dist.Laplace(0.0, 1.0), dist.ImproperUniform(dist.constraints.real, (), ())]
)
def test_a_prior_without_curvature_is_left_to_the_chains(prior):
    start = dist.Normal(0.0, 1.0)
    model, data, folds = one_large_group(prior)
    model = model._replace(init=lambda key: {"u": start.sample(key, (2,))})
    assert choose("auto", model, "m", data, folds).predictive == "plain"
    with pytest.raises(PcvError, match="their log prior has no curvature, as Laplace's or an im"):
        choose("marginal", model, "m", data, folds)


@pytest.mark.parametrize(
    ("dtype", "correlation", "far", "error"),
    [("float64", 1 - 1e-8, 10.0, 1e-6), ("float64", 0.9, 1e5, 1e-6), ("float32", 0.9, 1e3, 1e-2)],
)
def test_one_step_finds_all_of_a_normal_density(dtype, correlation, far, error):
    scale, mean = np.array([0.1, 30.0]), np.array([1.0, -2.0])
    cov = np.array([[1, correlation], [correlation, 1]]) * np.outer(scale, scale)
    precision, at = (jnp.asarray(x, dtype) for x in (np.linalg.inv(cov), mean))
    start = jnp.asarray(mean + far * scale * np.array([1.0, -1.0]), dtype)

    def log_density(x):
        return -(x - at) @ precision @ (x - at) / 2

    exact = np.log(2 * np.pi) + np.linalg.slogdet(cov)[1] / 2
    found = normal(log_density, start)
    assert abs(found.log_integral - exact) < error
    np.testing.assert_allclose(found.whiten @ found.scale, np.eye(2), atol=1e-3)
    assert found.log_det == pytest.approx(np.linalg.slogdet(cov)[1] / 2, abs=error)
    safeguarded = laplace(log_density, start)
    assert (abs(safeguarded.log_integral - exact) > 0.1) == (correlation > 0.999)


@pytest.mark.slow
def test_more_nodes_for_means_of_one_over_the_integral():
    data = rats_data()
    model = rats.random_slopes(data)
    folds = leave_one_group_out(data["rat"], "rat")
    keys = jax.random.split(jax.random.key(5), DRAWS)
    params = jax.vmap(lambda key: near_the_posterior(key, data))(keys)
    local = find(model, data, folds)._replace(exact=False)
    exact, _ = of_folds(model, data, params, folds)
    bias = {}
    for nodes in (16, NODES_PER_DIM):
        joint, _ = of_folds(integrated(model, data, local, folds, nodes), data, params, folds)
        bias[nodes] = np.log(np.exp(exact - joint).mean(0)).sum()
    # False alarm < 1e-4: they are .02 and .32, with sds of .01 and .04.
    assert abs(bias[NODES_PER_DIM]) < 0.07
    assert bias[16] > 0.12


@pytest.mark.parametrize("seed", repeated([1, 2, 3]))
def test_two_effects_by_group_are_right_on_average(seed):
    data = rats_data()
    model = rats.random_slopes(data)
    folds = leave_one_group_out(data["rat"], "rat")
    keys = jax.random.split(jax.random.key(seed), DRAWS)
    params = jax.vmap(lambda key: near_the_posterior(key, data))(keys)
    found = integrated(model, data, find(model, data, folds)._replace(exact=False), folds)
    mine, exact = (of_folds(x, data, params, folds) for x in (found, model))
    joint, single = (np.exp(approximate - true) for approximate, true in zip(mine, exact))
    z = (joint.mean(0) - 1) / (joint.std(0) / np.sqrt(DRAWS))
    assert np.abs(z).max() < z_limit(z.size, df=DRAWS - 1)
    # Those of single units have heavy tails, so that a mean of 200 is far from normal.
    of_all = single.mean(2)
    assert abs(of_all.mean() - 1) < z_limit() * of_all.std() / np.sqrt(of_all.size)
    assert joint.std() < 0.2  # false alarm < 1e-4: .104, with an sd of .001


def test_poisson_groups_against_dense_quadrature():
    rng = np.random.default_rng(5)
    data = given({"y": rng.poisson(np.exp(rng.normal(1, 1, 5)[GROUP_OF_UNIT])), "g": GROUP_OF_UNIT})

    def log_prior(params):
        effects = dist.Normal(params["mu"], jnp.exp(params["log_tau"])).log_prob(params["u"])
        return sum(-(params[x] ** 2) / 2 for x in ("mu", "log_tau")) + effects.sum()

    def init(key):
        a, b, c = jax.random.split(key, 3)
        mu, tau = jax.random.normal(a), jax.random.normal(b)
        return {"mu": mu, "log_tau": tau, "u": mu + jnp.exp(tau) * jax.random.normal(c, (5,))}

    def log_lik(params, data):
        return dist.Poisson(jnp.exp(params["u"][data["g"]])).log_prob(data["y"])

    model = Model(init, log_prior, log_lik, lambda params: params, Outcome("y"))
    found = integrated(model, data, find(model, data, GROUPS), GROUPS)
    params = {
        "mu": jnp.array([1.0, 0.3, 1.5]),
        "log_tau": jnp.log(jnp.array([1.0, 0.4, 1.8])),
        "u": jnp.zeros((3, 5)),
    }
    joint, pointwise = of_folds(found, data, params, GROUPS)
    for draw in range(3):
        mu, tau = float(params["mu"][draw]), float(np.exp(params["log_tau"][draw]))
        for k, test in enumerate(GROUPS.test):
            y = data["y"][test[test >= 0]]
            sets = [y, *(y[i : i + 1] for i in range(len(y)))]
            exact = [
                np.log(
                    quad(
                        lambda u: np.exp(
                            scipy_poisson.logpmf(y, np.exp(u)).sum()  # noqa: B023
                            + norm.logpdf(u, mu, tau)  # noqa: B023
                        ),
                        mu - 12 * tau,
                        mu + 12 * tau,
                        points=[np.log(y.mean() + 0.2)],
                        limit=500,
                        epsabs=0,
                    )[0]
                )
                for y in sets
            ]
            assert joint[draw, k] == pytest.approx(exact[0], abs=1e-4)
            np.testing.assert_allclose(pointwise[draw, k, : len(y)], exact[1:], atol=2e-3)


@pytest.mark.slow
def test_a_prior_that_is_not_normal():
    model, data = gamma_poisson()
    local = find(model, data, GROUPS)
    assert not local.normal
    params = jax.vmap(model.init)(jax.random.split(jax.random.key(2), DRAWS))
    joint, pointwise = of_folds(integrated(model, data, local, GROUPS), data, params, GROUPS)
    b = np.exp(np.asarray(params["log_b"]))
    exact = np.array(
        [
            [negative_binomial(x, data["y"][test[test >= 0]]) for test in GROUPS.test]
            for x in b.tolist()
        ]
    )
    np.testing.assert_allclose(joint, exact, atol=1e-3)
    one = np.array([[negative_binomial(x, data["y"][[i]]) for i in range(14)] for x in b.tolist()])
    for k, test in enumerate(GROUPS.test):
        units = test[test >= 0]
        np.testing.assert_allclose(pointwise[:, k, : len(units)], one[:, units], atol=5e-3)
    taken = integrated(model, data, local._replace(normal=True), GROUPS)
    assert np.median(np.abs(of_folds(taken, data, params, GROUPS)[0] - exact)) > 0.1


def groups_of_effects(log_priors):
    """Groups of four with an effect u = mu + tau e each, and a normal outcome.

    Args:
        log_priors: log density of e, of each group.
    """
    number = len(log_priors)
    group = np.repeat(np.arange(number), 4)
    rng = np.random.default_rng(3)
    y = 0.5 + rng.standard_t(3, number)[group] + rng.normal(size=4 * number)

    def init(key):
        a, b, c = jax.random.split(key, 3)
        tau, e = 0.5 * jax.random.normal(b), 1.5 * jax.random.t(c, 4.0, (number,))
        return {"mu": jax.random.normal(a), "tau": tau, "u": e * jnp.exp(tau)}

    def log_prior(params):
        e = (params["u"] - params["mu"]) / jnp.exp(params["tau"])
        each = sum(f(e[g]) for g, f in enumerate(log_priors)) - number * params["tau"]
        return -(params["mu"] ** 2) / 2 - 2 * params["tau"] ** 2 + each

    def log_lik(params, data):
        return dist.Normal(params["u"][group], 1.0).log_prob(data["y"])

    model = Model(init, log_prior, log_lik, lambda params: params, Outcome("y"))
    return model, given({"y": y}), leave_one_group_out(group, "group")


def by_dense_nodes(log_priors, params, y):
    """Joint and pointwise predictive of groups of four, at every draw."""
    s = np.linspace(-16, 16, 40_001)
    e, log_weight = 1e-3 * np.sinh(s), np.log(1e-3 * (s[1] - s[0]) * np.cosh(s))
    weighted = [np.asarray(jax.vmap(f)(jnp.asarray(e))) + log_weight for f in log_priors]

    def of(mu, tau, g):
        terms = norm.logpdf(y.reshape(-1, 4, 1)[g], mu + np.exp(tau) * e, 1.0)
        total = np.logaddexp.reduce(weighted[g])
        joint = np.logaddexp.reduce(weighted[g] + terms.sum(0))
        return np.r_[joint, np.logaddexp.reduce(weighted[g] + terms, axis=1)] - total

    every = zip(np.asarray(params["mu"]), np.asarray(params["tau"]))
    found = np.array([[of(*each, g) for g in range(len(log_priors))] for each in every])
    return found[..., 0], found[..., 1:]


NORMAL, STUDENT = dist.Normal(0.0, 1.0).log_prob, dist.StudentT(3.0, 0.0, 1.0).log_prob
GUMBEL = dist.Gumbel(0.0, 1.0).log_prob


def two_modes(x):
    return jnp.logaddexp(dist.Normal(-3.0, 0.3).log_prob(x), dist.Normal(2.0, 0.3).log_prob(x))


EFFECTS = {
    "hospitals and clinics": [NORMAL] * 6 + [STUDENT] * 4,
    "and Gumbel": [NORMAL] * 6 + [GUMBEL] * 4,
}


@pytest.mark.parametrize("name", repeated(EFFECTS))
def test_every_group_is_integrated_as_its_prior_is(name):
    model, data, folds = groups_of_effects(EFFECTS[name])
    local = find(model, data, folds)
    assert not local.normal
    params = jax.vmap(model.init)(jax.random.split(jax.random.key(2), 50))
    exact = by_dense_nodes(EFFECTS[name], params, data["y"])
    found = of_folds(integrated(model, data, local, folds), data, params, folds)
    for mine, theirs in zip(found, exact):
        np.testing.assert_allclose(mine, theirs, atol=2e-3)
    taken = local._replace(normal=True, exact=True)
    wrong, _ = of_folds(integrated(model, data, taken, folds), data, params, folds)
    assert not np.abs(wrong - exact[0])[:, -4:].max() < 0.1


def second_look_of(how, data, folds, number=2):
    """The gaps at so many draws from the prior, and what is said."""
    params = jax.vmap(how.model.init)(jax.random.split(jax.random.key(2), number))
    position = jax.vmap(lambda x: ravel_pytree(x)[0])(params)
    positions = np.broadcast_to(position, (len(folds.id), *position.shape))
    said = []
    return second_look.gaps(how, data, folds, positions, Monitor(emit=said.append)), said


def as_if_normal(how):
    return how._replace(local=how.local._replace(normal=True))


@pytest.mark.slow
def test_a_second_look_tells_integrals_that_are_wrong():
    model, data, folds = groups_of_effects(EFFECTS["and Gumbel"])
    how = choose("auto", model, "m", data, folds)
    gaps, said = second_look_of(how, data, folds)
    assert gaps.max() == 0
    assert said == ["checking integrals of 10 of 10 folds by a second method"]
    gaps, _ = second_look_of(as_if_normal(how), data, folds)
    assert gaps[-4:].max() > 0.1
    assert gaps[:6].max() == 0


@pytest.mark.slow
def test_a_second_look_at_some_folds_of_two_groups_each(monkeypatch):
    """Where all would be too many; what is not looked at is not said to agree."""
    model, data, _ = groups_of_effects(EFFECTS["and Gumbel"])
    folds = from_sets([str(k) for k in range(5)], list(np.arange(40).reshape(5, 8)), None, 40)
    how = choose("auto", model, "m", data, folds)
    assert how.local.most == 2
    terms = 2 * second_look.DRAWS * (40 + 12)
    monkeypatch.setattr(second_look, "MAX_TERMS", 3 * 3 * terms)
    gaps, said = second_look_of(how, data, folds)
    np.testing.assert_array_equal(gaps, [0, np.nan, 0, np.nan, 0])
    assert said == ["checking integrals of 3 of 5 folds by a second method"]
    monkeypatch.setattr(second_look, "MAX_TERMS", 5 * 2 * terms)
    gaps, said = second_look_of(as_if_normal(how), data, folds)
    assert said == ["checking integrals of 5 of 5 folds by a second method"]
    assert gaps[-2:].max() > 0.1
    assert gaps[:3].max() == 0


@pytest.mark.slow
def test_a_second_look_tells_single_units_whose_peaks_are_missed():
    """Forty of them, thousands of standard deviations of their noise apart."""
    prior = dist.StudentT(3.0, 0.0, 1.0)
    group = np.repeat(np.arange(2), 40)
    spread = np.r_[np.linspace(-1.5, 1.5, 40), np.zeros(40)]
    gaps = {}
    for sd in (1e-4, 1.0):
        data = given({"y": spread, "group": group})
        model = Model(
            init=lambda key: {"u": prior.sample(key, (2,))},
            log_prior=lambda params: prior.log_prob(params["u"]).sum(),
            log_lik=lambda params, data: dist.Normal(params["u"][group], sd).log_prob(data["y"]),  # noqa: B023
            constrain=lambda params: params,
            outcome=Outcome("y"),
        )
        folds = leave_one_group_out(group, "group")
        how = choose("auto", model, "m", data, folds)
        gaps[sd], _ = second_look_of(how, data, folds)
    np.testing.assert_array_equal(gaps[1.0], [0, 0])
    assert gaps[1e-4][0] > 1
    assert gaps[1e-4][1] == 0


def test_two_modes_that_look_normal_beside_each_other():
    """Each has the same curvature, but not the slope that follows from the other's."""

    def far(x):
        return jnp.logaddexp(dist.Normal(-9.0, 0.1).log_prob(x), dist.Normal(9.0, 0.1).log_prob(x))

    model, data, folds = groups_of_effects([far] * 4)

    def init(key):
        sign = jnp.where(jax.random.bernoulli(key, 0.5, (4,)), 9.0, -9.0)
        zero = jnp.zeros(())
        return {"mu": zero, "tau": zero, "u": sign + 0.1 * jax.random.normal(key, (4,))}

    assert not find(model._replace(init=init), data, folds).normal


def two_effects(log_prior_of_two):
    """An intercept and a slope of each of four groups, and a normal outcome."""
    group, x = np.repeat(np.arange(4), 5), np.tile(np.linspace(-1, 1, 5), 4)
    y = np.random.default_rng(3).normal(size=20)

    def init(key):
        return {"a": jax.random.t(key, 4.0, (4, 2))}

    def log_lik(params, data):
        mean = params["a"][group, 0] + params["a"][group, 1] * x
        return dist.Normal(mean, 1.0).log_prob(data["y"])

    def log_prior(params):
        return jax.vmap(log_prior_of_two)(params["a"]).sum()

    model = Model(init, log_prior, log_lik, lambda params: params, Outcome("y"))
    return model, given({"y": y}), leave_one_group_out(group, "group"), x[:5]


@pytest.mark.slow
def test_two_independent_effects_that_are_not_normal():
    log_p = dist.StudentT(3.0, 0.0, jnp.array([1.0, 0.5])).log_prob
    model, data, folds, x = two_effects(lambda a: log_p(a).sum())
    local = find(model, data, folds)
    assert not local.normal
    s = np.linspace(-9, 9, 601)
    e, weight = np.sinh(s), (s[1] - s[0]) * np.cosh(s)
    p = np.exp(np.asarray(dist.StudentT(3.0).log_prob(e))) * weight
    mean = e[:, None, None] + 0.5 * e[None, :, None] * x
    exact = [
        np.log(np.einsum("a,b,ab->", p, p, np.exp(norm.logpdf(y, mean).sum(-1))))
        for y in data["y"].reshape(4, 5)
    ]
    params = jax.vmap(model.init)(jax.random.split(jax.random.key(2), 2 * DRAWS))

    def errors(local):
        joint, _ = of_folds(integrated(model, data, local, folds), data, params, folds)
        ratio = np.exp(joint - exact)
        return (ratio.mean(0) - 1) / (ratio.std(0) / np.sqrt(len(ratio)))

    limit = z_limit(4, df=2 * DRAWS - 1)
    assert np.abs(errors(local)).max() < limit
    assert not np.abs(errors(local._replace(normal=True))).max() < limit


@pytest.mark.slow
def test_effects_that_a_prior_ties_are_left_to_the_chains_unless_normal():
    together = dist.MultivariateStudentT(4.0, jnp.zeros(2), jnp.linalg.cholesky(_COV))
    model, data, folds, _ = two_effects(together.log_prob)
    assert "is not normal, and may make a group's effects dependent" in find(model, data, folds)
    assert choose("auto", model, "m", data, folds).predictive == "plain"
    normal_one = dist.MultivariateNormal(jnp.zeros(2), _COV)
    assert find(*two_effects(normal_one.log_prob)[:3]).exact


@pytest.mark.parametrize("radius", [1e-3, 1e3])
def test_effects_of_which_no_move_tells_are_not_taken_for_independent(radius):
    """As where a prior is 0 at the end of every one."""

    def log_prior(x):
        inside = (x**2).sum() < radius**2
        return jnp.where(inside, dist.StudentT(3.0, 0.0, 1.0).log_prob(x).sum(), -jnp.inf)

    positions = 1e-5 * np.random.default_rng(1).normal(size=(8, 2))
    shapes = effects._shapes(log_prior, positions, np.array([[0, 1]]), np.ones((1, 2)))
    assert shapes.independent.tolist() == [radius > 1]


_COV = np.array([[1.0, 0.3], [0.3, 0.5]])


@pytest.mark.slow
def test_replicates_have_effects_drawn_anew():
    problem = hierarchy("marginal")
    predict = lambda key, params, data: dist.Normal(  # noqa: E731
        params["theta"][data["group"]], 1.0
    ).sample(key)
    model, data = problem.model._replace(predict=predict), given(problem.data)
    local = find(model, data, GROUPS)
    params, test = {"mu": jnp.array(1.5), "theta": jnp.full(5, -40.0)}, jnp.asarray(GROUPS.test[2])
    keys = jax.random.split(jax.random.key(1), 20_000)
    present = GROUPS.test[2] >= 0
    cov = 1.2**2 + np.eye(present.sum())
    spread = np.sqrt((cov**2 + np.outer(np.diag(cov), np.diag(cov))) / len(keys))
    for is_normal in (True, False):
        found = integrated(model, data, local._replace(normal=is_normal), GROUPS)
        anew = jax.vmap(found.marginal_predict, (0, None, None, None))
        drawn = np.asarray(anew(keys, params, numeric(data), test))[:, present]
        error = np.sqrt(np.diag(cov) / len(keys))
        assert np.abs((drawn.mean(0) - 1.5) / error).max() < z_limit(error.size)
        assert np.abs((np.cov(drawn.T) - cov) / spread).max() < z_limit(spread.size)


SITE = np.repeat(np.arange(4), [3, 4, 5, 6])
SCALES = {
    "own row": lambda t: t / 10,
    "maximum": lambda t: t / t.max(),
}


def trend_of_sites(scale):
    """A NumPyro model of a trend in time, scaled by all data; rows are in the order of time, so
    that the first and the last hold the extremes, and the largest site the maximum."""
    rng = np.random.default_rng(0)
    t = np.sort(rng.uniform(0, 10, 18))
    y = 0.3 * t + rng.normal(size=18)

    def trend(y, t, site):
        a, b = numpyro.sample("a", dist.Normal(0, 1)), numpyro.sample("b", dist.Normal(0, 1))
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        with numpyro.plate("sites", 4):
            u = numpyro.sample("u", dist.Normal(0, tau))
        with numpyro.plate("case", len(y)):
            numpyro.sample("y", dist.Normal(a + b * scale(t) + u[site], 1), obs=y)

    made = from_numpyro(trend, {"y": y, "t": t, "site": SITE})
    return made, given(dict(made.data.columns)), scale(t)


def of_three_rows(model, data, folds):
    """What told once whether test sets can be looked at alone: the first, middle and last row."""
    arrays = numeric(data)
    params = model.init(jax.random.key(0))
    few = {name: x[np.array([17, 8, 0])] for name, x in arrays.items()}
    whole = np.asarray(model.log_lik(params, arrays))[[17, 8, 0]]
    return np.allclose(model.log_lik(params, few), whole, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("scale", repeated(SCALES))
def test_terms_that_depend_on_other_rows_have_all_of_them(scale, monkeypatch):
    model, data, z = trend_of_sites(SCALES[scale])
    folds = leave_one_group_out(SITE, "site")
    local = find(model, data, folds)
    assert sliceable(model, data, folds) == (scale == "own row")
    params = jax.vmap(model.init)(jax.random.split(jax.random.key(1), 10))
    theta = {name: np.asarray(x) for name, x in jax.vmap(model.constrain)(params).items()}
    mean = theta["a"][:, None] + theta["b"][:, None] * z
    joint, pointwise = np.zeros((10, 4)), np.zeros((10, 4, 6))
    for k, test in enumerate(folds.test):
        units = test[test >= 0]
        for draw, tau in enumerate(theta["tau"]):
            cov = np.eye(len(units)) + tau**2
            normal = multivariate_normal(mean[draw, units], cov)
            joint[draw, k] = normal.logpdf(data["y"][units])
            by_unit = norm.logpdf(data["y"][units], mean[draw, units], np.sqrt(cov[0, 0]))
            pointwise[draw, k, : len(units)] = by_unit

    def errors():
        numerically = local._replace(exact=False)
        found = of_folds(integrated(model, data, numerically, folds), data, params, folds)
        return [np.abs(mine - exact).max() for mine, exact in zip(found, (joint, pointwise))]

    assert max(errors()) < 5e-3
    whole = Fold(jnp.zeros(18, bool), jnp.arange(18))
    terms = jax.vmap(lambda params: target(model, data, "plain").log_predictive(params, whole))
    by_hand = norm.logpdf(data["y"], mean + theta["u"][:, SITE], 1.0)
    np.testing.assert_allclose(terms(params)[1], by_hand, rtol=1e-10)
    if scale != "own row":
        assert of_three_rows(model, data, folds)
        monkeypatch.setattr(marginal, "sliceable", of_three_rows)
        assert min(errors()) > 0.5


@pytest.mark.slow
def test_too_many_effects_are_left_to_the_chains(monkeypatch):
    data = rats_data()
    model = rats.random_slopes(data)._replace(marginal=None, group=None)
    folds = leave_one_group_out(data["rat"], "rat")
    assert choose("auto", model, "rats", data, folds).integration == "exactly"
    monkeypatch.setattr(effects, "MAX_DIM", 1)
    assert choose("auto", model, "rats", data, folds).predictive == "plain"
    with pytest.raises(PcvError, match=r"be integrated out: a group has 2, more than 1; write"):
        choose("marginal", model, "rats", data, folds)


def looped(x):
    """Its derivative needs to know how often the loop was run."""
    return jax.lax.while_loop(lambda at: at < 1.0, lambda at: at + 1.0, x)


def kinked(x):
    """Finite, and its derivative is not."""
    return jnp.where(x == 0.0, 0.0, jnp.sqrt(jnp.abs(x)) / jnp.sqrt(jnp.abs(x)))


@pytest.mark.parametrize(("added", "smooth"), [(jnp.sin, True), (looped, False), (kinked, False)])
def test_chains_need_the_gradient_of_a_marginal(added, smooth):
    problem = narrow_effects()
    (folds,) = problem.schemes.values()
    model = problem.model

    def marginal_of(params, data, test):
        joint, pointwise = model.marginal(params, data, test)
        return joint + added(params["mu"]), pointwise

    changed = model._replace(marginal=marginal_of)
    how = choose("auto", changed, "narrow", problem.data, folds)
    assert decoupling.may_be_decoupled(how)
    center = np.zeros(29)
    assert decoupling.is_smooth(how, given(problem.data), center, folds) == smooth


def test_a_fold_prior_of_ones_own_stays():
    problem = narrow_effects()
    (folds,) = problem.schemes.values()
    model = problem.model._replace(fold_prior=lambda params, test: problem.model.log_prior(params))
    how = choose("auto", model, "narrow", problem.data, folds)
    assert not decoupling.may_be_decoupled(how)
