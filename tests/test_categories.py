"""Scores of categories: against the closed form of a Dirichlet posterior; refusals."""

import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from pcv import from_numpyro
from pcv.analysis.diagnostics.jackknife import batch_bootstrap, batch_jackknife
from pcv.base.errors import PcvError
from pcv.folds.exchangeable import kfold, leave_one_group_out
from pcv.models import scores
from pcv.models.model import Model, Outcome, Target, support, target
from pcv.models.parameters import flat_target
from pcv.models.scores.categories import by_category
from pcv.sampling.tiles import build
from tests.bounds import sd_limits, z_limit
from tests.chains import Sampled, fit_of, replicated, run

SEEDS, REPLICATIONS, CHAINS, BATCHES, BATCH_SIZE = (1, 2), 20, 4, 10, 20
Y = np.array([0, 2, 2, 1, 3, 3, 2, 3, 1, 3, 3, 2])
COUNT = 4
FOLDS = kfold(len(Y), 3, seed=1)
SPACE = support({"p": dist.constraints.simplex})
NAMES = ["brier", "accuracy", "balanced_accuracy", "rps"]


def log_prior(params):
    p = SPACE.constrain(params)["p"]
    return dist.Dirichlet(jnp.ones(COUNT)).log_prob(p) + SPACE.log_jacobian(params)


DIE = Model(
    init=lambda key: SPACE.unconstrain({"p": dist.Dirichlet(jnp.ones(COUNT)).sample(key)}),
    log_prior=log_prior,
    log_lik=lambda params, data: jnp.log(SPACE.constrain(params)["p"])[data["y"]],
    constrain=SPACE.constrain,
    outcome=Outcome("y", discrete=True, ordered=True),
)


def squares_at_each_draw(key, target, params, fold):
    p = scores.SCORES["brier"][0].statistic(key, target, params, fold)["p"]
    observed = target.observed(fold)[:, None] == jnp.arange(COUNT)
    return {"square": ((p - observed) ** 2).sum(-1)}


def without_order(means, y):
    p, observed = by_category(means, y)
    return -((p - observed) ** 2)[..., :-1].sum(-1)


(BRIER,), (RPS,) = scores.SCORES["brier"], scores.SCORES["rps"]
TWINS = {
    BRIER: BRIER._replace(
        name="at_each", statistic=squares_at_each_draw, estimate=lambda means, y: -means["square"]
    ),
    RPS: RPS._replace(estimate=without_order),
}


@cache
def sampled(seed: int) -> tuple[Sampled, np.ndarray]:
    """Folds that throw the die, and what was observed in them."""
    folds = replicated(FOLDS, REPLICATIONS)
    p = np.random.default_rng(seed).dirichlet(
        1 + np.bincount(Y, minlength=COUNT), len(folds.id) * CHAINS
    )
    draws = np.asarray(jax.vmap(lambda p: SPACE.unconstrain({"p": p})["p"])(p))
    flat, _ = flat_target(target(DIE, {"y": Y}, "plain"))
    engine = build(flat, (BRIER, TWINS[BRIER]), len(Y), BATCH_SIZE)
    starts = draws.reshape(len(folds.id), CHAINS, -1)
    y = np.where(folds.test >= 0, Y[folds.test], np.nan)
    made = run(engine, fit_of(draws, 0.7, 3), folds, starts, seed, BATCHES)
    return made, y


def predictive() -> np.ndarray:
    """Probability of every category of each tested unit: (fold, slot, category)."""
    train = np.array([np.bincount(np.delete(Y, test), minlength=COUNT) for test in FOLDS.test])
    p = (1 + train) / (COUNT + train.sum(1, keepdims=True))
    return np.repeat(p[:, None], FOLDS.test.shape[1], axis=1)


def of_formula(name: str) -> np.ndarray:
    p, seen = predictive(), np.eye(COUNT)[Y[FOLDS.test]]
    if name == "brier":
        return -((p - seen) ** 2).sum(-1)
    if name == "rps":
        return -((p.cumsum(-1) - seen.cumsum(-1)) ** 2).sum(-1)
    return (p.argmax(-1) == Y[FOLDS.test]).astype(float)


@pytest.mark.parametrize("score", [BRIER, RPS], ids=lambda score: score.name)
def test_scores_are_exact_within_their_error(score):
    """Of all replications; errors are as large as stated, and a slip is noticed."""
    z, slips = [], []
    for seed in SEEDS:
        made, y = sampled(seed)
        exact = np.tile(of_formula(score.name).sum(1), REPLICATIONS)
        for one, errors in ((score, z), (TWINS[score], slips)):
            parts = made.parts[one.key if one.key in made.parts else BRIER.key]
            found = batch_jackknife(parts, lambda m, x=one, y=y: x.estimate(m, y), ~np.isnan(y))
            errors.append((found.value.sum(1) - exact) / found.mcse)
    # 40 batches of 20 draws, of which neighbours are correlated: they understate errors by 5%.
    limit = 1.05 * z_limit(np.size(z), CHAINS * BATCHES - 1)
    low, high = sd_limits(np.size(z))
    assert np.abs(z).max() < limit
    assert low < np.std(z) < 1.05 * high
    together = np.array(slips).reshape(-1, len(FOLDS.id)).mean(0) * np.sqrt(np.size(z) / 3)
    assert np.abs(together).max() > limit  # 30 and more


def test_scores_of_probabilities_have_the_formulas_of_scoringrules():
    rng = np.random.default_rng(1)
    p, y = rng.dirichlet(np.ones(4), size=(1, 20)), rng.integers(4, size=(1, 20)).astype(float)
    observed = (y[..., None] == np.arange(4)).astype(float)
    formulas = {
        "brier": -((p - observed) ** 2).sum(-1),
        "rps": -((p.cumsum(-1) - observed.cumsum(-1)) ** 2).sum(-1),
    }
    for name, formula in formulas.items():
        (score,) = scores.named([name])
        np.testing.assert_allclose(score.estimate({"p": p}, y), formula, rtol=1e-10)


def test_accuracy_counts_the_most_probable_category():
    made, y = sampled(1)
    (accuracy,) = scores.SCORES["accuracy"]
    found = batch_bootstrap(
        made.parts[BRIER.key],
        lambda m: accuracy.estimate(m, y),
        np.random.default_rng(1),
        ~np.isnan(y),
    )
    p = np.sort(predictive(), axis=-1)
    clear = np.tile(p[..., -1] - p[..., -2] > 0.05, (REPLICATIONS, 1))
    exact = np.tile(of_formula("accuracy"), (REPLICATIONS, 1))
    assert clear.any()
    np.testing.assert_array_equal(found.value[clear], exact[clear])


def test_categories_that_share_the_largest_probability_share_the_unit():
    (accuracy,) = scores.SCORES["accuracy"]
    p = np.array([[[0.4, 0.4, 0.2], [0.4, 0.4, 0.2]]])
    assert accuracy.estimate({"p": p}, np.array([[0.0, 2.0]])).tolist() == [[0.5, 0.0]]


def test_two_categories_score_alike_by_the_observed_value_and_by_both():
    """But for the Brier score, which is half of the sum."""
    p = np.random.default_rng(1).uniform(size=(3, 5))
    y = np.random.default_rng(2).choice(2, (3, 5)).astype(float)
    both = np.where(y[..., None] == [0, 1], p[..., None], 1 - p[..., None])
    for name, factor in (("brier", 2), ("accuracy", 1), ("rps", 1)):
        (score,) = scores.SCORES[name]
        one, other = (score.estimate({"p": x}, y) for x in (p, both))
        np.testing.assert_allclose(factor * one, other, rtol=1e-12)


def check(name: str, model: Model | Target, y: np.ndarray = Y) -> None:
    scores.check(scores.named([name]), model, "m", {"y": y}, len(y), "plain", 4, FOLDS)


def lagged(params, data):
    p, before = SPACE.constrain(params)["p"], jnp.roll(data["y"], 1)
    return jnp.log(jnp.where(data["y"] == before, 0.5, 0.5 * p[data["y"]] / (1 - p[before])))


@pytest.mark.parametrize("name", NAMES)
def test_categories_are_accepted(name):
    check(name, DIE)
    check(name, DIE._replace(outcome=Outcome("y", ordered=True, categories=COUNT)), Y % 2)


def test_a_binary_target_needs_its_log_predictive_alone():
    coin = DIE._replace(
        log_lik=lambda params, data: jnp.log(SPACE.constrain(params)["p"][:2])[data["y"]],
        outcome=Outcome("y"),
    )
    alone = target(coin, {"y": Y % 2}, "plain")._replace(density=None, observed=None)
    for name in NAMES:
        check(name, alone, Y % 2)


POISSON = DIE._replace(
    log_lik=lambda params, data: dist.Poisson(jnp.exp(params["p"][0])).log_prob(data["y"])
)
DEAF = DIE._replace(log_lik=lambda params, data: jnp.log(SPACE.constrain(params)["p"])[Y])


@pytest.mark.parametrize(
    ("name", "model", "y", "words"),
    [
        ("brier", DIE, Y / 2, "needs categories 0, 1, 2, ..., but 'y' has a value of 0.5"),
        ("accuracy", DIE, Y - 1, "needs categories 0, 1, 2, ..., but 'y' has a value of -1"),
        (
            "balanced_accuracy",
            DIE._replace(outcome=Outcome("y", discrete=False)),
            Y,
            "'y' is continuous: it has no categories",
        ),
        ("balanced_accuracy", DIE, 0 * Y, "needs outcomes that differ, but all of 'y' are 0"),
        ("brier", POISSON, Y, "not 1, at a draw from the prior: for counts, use crps"),
        ("brier", DEAF, Y, "log_lik does not read 'y' from its second argument"),
        ("brier", DIE._replace(log_lik=lagged), Y, "depend on other tested outcomes (lags)"),
        (
            "rps",
            DIE._replace(outcome=Outcome("y", ordered=False)),
            Y,
            "categories of 'y' have no order: use brier instead",
        ),
        (
            "rps",
            DIE._replace(outcome=Outcome("y")),
            Y,
            "if so, declare it, pcv.Outcome('y', ordered=True)",
        ),
        (
            "brier",
            DIE._replace(outcome=Outcome("y", categories=3)),
            Y,
            "it has 3 categories from 0, but 'y' has a value of 3",
        ),
        (
            "rps",
            target(DIE, {"y": Y}, "plain")._replace(density=None),
            Y,
            "it needs pcv.Target(..., density=..., observed=...)",
        ),
    ],
)
def test_refusals(name, model, y, words):
    with pytest.raises(PcvError, match=re.escape(words)) as error:
        check(name, model, y)
    assert str(error.value).startswith(f"score '{name}' of model 'm': ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("distribution", "known"),
    [
        (dist.OrderedLogistic(0.0, jnp.array([-1.0, 0.0, 1.0])), (True, 4)),
        (dist.Categorical(probs=jnp.ones(5) / 5), (None, 5)),
        (dist.Poisson(2.0), (True, None)),
        (dist.Normal(0.0, 1.0), (None, None)),
    ],
)
def test_front_ends_know_categories_and_their_order(distribution, known):
    def model(y):
        numpyro.sample("z", dist.Normal(0.0, 1.0))
        with numpyro.plate("unit", len(y)):
            numpyro.sample("y", distribution, obs=y)

    y = Y if distribution.support.is_discrete else Y * 1.0
    made = from_numpyro(model, {"y": y})
    assert (made.outcome.ordered, made.outcome.categories) == known
    assert (made.moments is None) == (known[1] is not None)  # categories have no mean in NumPyro


def test_categories_are_checked_on_test_sets_of_the_folds():
    """A marginal predictive is one of the units of left-out groups."""
    group = jnp.arange(len(Y)) // 4

    def marginal(params, data, test):
        terms = DIE.log_lik(params, data)[test]
        of_units = jnp.where((test >= 0) & (group[test] == group[test[0]]), terms, 0.0)
        return of_units.sum(), of_units

    model, folds = DIE._replace(marginal=marginal), leave_one_group_out(np.asarray(group))
    asked = scores.named(NAMES), model, "m", {"y": Y}, len(Y), "marginal"
    scores.check(*asked, 4, folds)
    with pytest.raises(PcvError, match="add up to"):
        scores.check(*asked, 8, leave_one_group_out(np.asarray(group) // 2))
