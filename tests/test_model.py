"""What a user writes becomes what the sampler sees: supports, targets, checks."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy.stats import norm

from pcv.base.errors import PcvError
from pcv.folds.base import from_sets
from pcv.folds.exchangeable import kfold, leave_one_group_out, leave_one_out
from pcv.models.checks import values
from pcv.models.checks.folds import check_gap, check_marginal, given_tested
from pcv.models.checks.prior import check_prior
from pcv.models.checks.shapes import check_shapes
from pcv.models.checks.values import CHECKED_DRAWS, check_values
from pcv.models.effects.marginal import choose
from pcv.models.model import Fold, Model, Outcome, Target, support, target
from pcv.models.parameters import flat_target, param_names
from tests.problems import PROBLEMS, coin, variance

GROUP = np.array([0, 0, 1, 1, 1])
DATA = {
    "y": np.array([0.3, -1.2, 2.0, 0.7, -0.4]),
    "group": GROUP,
    "site": np.array(["a", "a", "b", "b", "b"]),
    "unit": np.arange(5),
}
UNITS = [f"unit {i}" for i in range(5)]


def init(key):
    of_mu, of_theta = jax.random.split(key)
    return {"theta": jax.random.normal(of_theta, (2,)), "mu": jax.random.normal(of_mu)}


def log_prior(params):
    theta = dist.Normal(params["mu"], 1.0).log_prob(params["theta"]).sum()
    return dist.Normal(0.0, 1.0).log_prob(params["mu"]) + theta


def log_lik(params, data):
    return dist.Normal(params["theta"][data["group"]], 1.0).log_prob(data["y"])


def marginal(params, data, test):
    pointwise = jnp.where(test >= 0, params["mu"] + data["y"][test], 0.0)
    return 10.0 * pointwise.sum(), pointwise


MODEL = Model(init, log_prior, log_lik, lambda params: params, Outcome("y"), marginal, GROUP)
TERMS = norm(np.array([0.5, -0.5])[GROUP], 1).logpdf(DATA["y"])
PRIOR = norm(0, 1).logpdf(0.2) + norm(0.2, 1).logpdf([0.5, -0.5]).sum()


@pytest.fixture
def params():
    return {"theta": jnp.array([0.5, -0.5]), "mu": jnp.array(0.2)}


SUPPORTS = {
    "positive": (constraints.positive, 0.7),
    "above": (constraints.greater_than(3.0), -0.4),
    "unit interval": (constraints.unit_interval, 1.2),
    "interval": (constraints.interval(-2.0, 5.0), -0.8),
    "several scales": (constraints.positive, np.array([[0.3, -1.0, 2.0]])),
    "ordered": (constraints.ordered_vector, np.array([0.5, -1.0, 0.2])),
    "positive ordered": (constraints.positive_ordered_vector, np.array([0.5, -1.0, 0.2])),
    "real": (constraints.real, 1.5),
}


@pytest.mark.parametrize(("constraint", "u"), SUPPORTS.values(), ids=SUPPORTS)
def test_log_jacobian_is_that_of_the_numerical_derivative(constraint, u):
    space = support({"x": constraint})
    u = np.asarray(u)

    def constrained(flat):
        value = space.constrain({"x": jnp.asarray(flat.reshape(u.shape))})["x"]
        return np.asarray(value).ravel()

    flat, step = u.ravel(), 1e-5
    derivative = np.stack(
        [
            (constrained(flat + step * e) - constrained(flat - step * e)) / (2 * step)
            for e in np.eye(flat.size)
        ]
    )
    _, numerical = np.linalg.slogdet(derivative)
    value = space.constrain({"x": jnp.asarray(u)})["x"]
    assert constraint(value).all()
    assert space.log_jacobian({"x": jnp.asarray(u)}) == pytest.approx(numerical, abs=1e-8)
    assert space.unconstrain({"x": value})["x"] == pytest.approx(u, abs=1e-9)


def test_jacobians_of_several_parameters_add():
    space = support({"sigma": constraints.positive, "p": constraints.unit_interval})
    u = {"sigma": jnp.array([0.3, -1.0]), "p": jnp.array(0.4), "mu": jnp.array(7.0)}
    p = 1 / (1 + np.exp(-0.4))
    assert space.log_jacobian(u) == pytest.approx((0.3 - 1.0) + np.log(p * (1 - p)))
    assert list(space.constrain(u)) == list(u)
    assert space.constrain(u)["mu"] == 7.0


def test_without_constraints_nothing_changes(params):
    space = support({})
    assert space.constrain(params) == params
    assert space.log_jacobian(params) == 0


def test_a_density_on_the_unconstrained_scale_integrates_to_one():
    space, prior = support({"x": constraints.positive}), dist.Gamma(3.0, 1.0)
    grid = {"x": jnp.linspace(-12.0, 4.0, 4001)}
    jacobian = jax.vmap(space.log_jacobian)(grid)
    log_density = prior.log_prob(space.constrain(grid)["x"])
    assert np.trapezoid(np.exp(log_density + jacobian), grid["x"]) == pytest.approx(1, abs=1e-4)
    assert np.trapezoid(np.exp(log_density), grid["x"]) != pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("train", [[True] * 5, [False] * 5, [True, False, True, False, True]])
def test_the_posterior_counts_training_units_alone(train, params):
    fold = Fold(jnp.array(train), jnp.array([1, -1]))
    expected = PRIOR + TERMS[train].sum()
    density = target(MODEL, DATA, "plain").log_density
    assert density(params, fold) == pytest.approx(expected)
    flat, unravel = flat_target(target(MODEL, DATA, "plain"))
    position = jnp.array([0.2, 0.5, -0.5])
    assert flat.log_density(position, fold) == pytest.approx(expected)
    assert {name: x.tolist() for name, x in unravel(position).items()} == {
        name: x.tolist() for name, x in params.items()
    }


def test_units_outside_training_do_not_move_the_gradient(params):
    fold = Fold(jnp.array([True, False, True, True, True]), jnp.array([1]))

    def gradient(unit, value):
        y = np.where(np.arange(5) == unit, value, DATA["y"])
        log_density = target(MODEL, DATA | {"y": y}, "plain").log_density
        return jax.grad(log_density)(params, fold)["theta"].tolist()

    assert gradient(1, 1e6) == gradient(1, -1.2)
    assert gradient(0, 1e6) != gradient(0, 0.3)


@pytest.mark.parametrize("test", [[1, 4], [1, 4, -1, -1], [-1, 4, -1, 1], [0, -1], [-1, -1]])
def test_plain_predictive_sums_the_tested_units_and_ignores_padding(test, params):
    fold = Fold(jnp.ones(5, bool), jnp.array(test))
    joint, pointwise = target(MODEL, DATA, "plain").log_predictive(params, fold)
    expected = [TERMS[i] if i >= 0 else 0.0 for i in test]
    assert pointwise == pytest.approx(expected)
    assert joint == pytest.approx(sum(expected))


def test_marginal_predictive_is_the_models_own(params):
    fold = Fold(jnp.ones(5, bool), jnp.array([1, 4, -1]))
    joint, pointwise = target(MODEL, DATA, "marginal").log_predictive(params, fold)
    assert pointwise == pytest.approx([0.2 - 1.2, 0.2 - 0.4, 0.0])
    assert joint == pytest.approx(-12.0)


def test_columns_of_text_stay_outside(params):
    def names(params, data):
        assert set(data) == {"y", "group", "unit"}
        return log_lik(params, data)

    fold = Fold(jnp.ones(5, bool), jnp.array([0]))
    density = target(MODEL._replace(log_lik=names), DATA, "plain").log_density
    assert np.isfinite(density(params, fold))


def test_param_names_follow_the_flat_order():
    def init(key):
        return {"b": jnp.zeros(2), "a": jnp.zeros(()), "m": jnp.arange(4.0).reshape(2, 2)}

    shaped = Target(init, lambda params, fold: params["m"].sum(), lambda params, fold: None)
    names = ["a", "b[0]", "b[1]", "m[0, 0]", "m[0, 1]", "m[1, 0]", "m[1, 1]"]
    assert param_names(shaped) == names
    flat, unravel = flat_target(shaped)
    assert flat.init(jax.random.key(0)).tolist() == [0, 0, 0, 0, 1, 2, 3]
    assert unravel(jnp.arange(7.0))["m"][1, 0] == 5 == names.index("m[1, 0]")


def test_outcome_names_its_scale():
    assert str(Outcome("weight")) == "weight"
    assert str(Outcome("weight", "log")) == "log(weight)"


def test_a_sound_model_passes_the_checks():
    check_shapes(MODEL, DATA, 5, MODEL.outcome.name, "good")
    check_values(MODEL, DATA, "good", UNITS)


SHAPES = {
    "log_lik summed": (
        {"log_lik": lambda params, data: log_lik(params, data).sum()},
        r"model 'bad': log_lik returns an array of float64, shape \(\); it must return one term "
        r"per unit of the data, an array of shape \(5,\)",
    ),
    "log_lik by group": (
        {"log_lik": lambda params, data: params["theta"]},
        r"model 'bad': log_lik returns .* shape \(2,\); it must return one term per unit",
    ),
    "log_lik of a missing column": (
        {"log_lik": lambda params, data: data["x"]},
        r"model 'bad': log_lik fails .*KeyError: 'x'",
    ),
    "log_lik of text": (
        {"log_lik": lambda params, data: data["site"]},
        r"model 'bad': log_lik fails .*KeyError: 'site': only the function that builds",
    ),
    "log_lik with if": (
        {"log_lik": lambda params, data: log_lik(params, data) if params["mu"] > 0 else 0},
        r"model 'bad': log_lik fails .*TracerBoolConversionError.*jnp.where instead of if",
    ),
    "log_prior by parameter": (
        {"log_prior": lambda params: params["theta"]},
        r"model 'bad': log_prior returns .* shape \(2,\); it must return one number",
    ),
    "log_prior of another parameter": (
        {"log_prior": lambda params: params["tau"]},
        r"model 'bad': log_prior fails .*KeyError: 'tau'",
    ),
    "init of clashing shapes": (
        {"init": lambda key: {"theta": jnp.zeros(2) + jnp.zeros(3)}},
        r"model 'bad': init fails .*TypeError: .*\(2,\).*\(3,\)",
    ),
    "init without names": (
        {"init": lambda key: jnp.zeros(3)},
        r"model 'bad': init returns .* shape \(3,\), not a dict of named parameters",
    ),
    "init of integers": (
        {"init": lambda key: {"theta": jnp.zeros(2, int), "mu": jnp.zeros(())}},
        r"model 'bad': init returns an array of int64, shape \(2,\) for 'theta'; every parameter",
    ),
    "constrain without names": (
        {"constrain": lambda params: params["mu"]},
        r"model 'bad': constrain returns .*, not a dict of variables",
    ),
    "marginal of the joint score alone": (
        {"marginal": lambda params, data, test: params["mu"]},
        r"model 'bad': marginal returns .*; it must return the joint score, one number, and the",
    ),
    "marginal of all units": (
        {"marginal": lambda params, data, test: (params["mu"], log_lik(params, data))},
        r"model 'bad': marginal returns .* shape \(5,\) for two slots",
    ),
    "unknown outcome": (
        {"outcome": Outcome("yy")},
        r"model 'bad': .*'yy'.*",
    ),
    "outcome as text": (
        {"outcome": "y"},
        r"model 'bad': outcome is 'y', not a pcv.Outcome",
    ),
}


@pytest.mark.parametrize(("change", "message"), SHAPES.values(), ids=SHAPES)
def test_wrong_shapes_are_refused(change, message):
    with pytest.raises(PcvError, match=message):
        check_shapes(MODEL._replace(**change), DATA, 5, MODEL.outcome.name, "bad")


def nan_at_unit_3(params, data):
    return log_lik(params, data).at[3].set(jnp.nan)


def infinite_at_negative_mu(params, data):
    return log_lik(params, data).at[2].set(jnp.where(params["mu"] < 0, -jnp.inf, 0.0))


def one_impossible_in_turn(params, data):
    other = infinite_at_negative_mu({**params, "mu": -params["mu"]}, data)
    return infinite_at_negative_mu(params, data).at[1].set(other[2])


def root_of_an_impossible_unit(params, data):
    terms = infinite_at_negative_mu(params, data)
    return terms.at[2].add(jnp.sqrt(jnp.maximum(params["mu"], 0.0)))


def root_at_its_bound(params):
    return log_prior(params) + jnp.sqrt(jnp.maximum(params["mu"], 0.0) * 0.0)


VALUES = {
    "nan": (
        {"log_lik": nan_at_unit_3},
        rf"model 'bad': log_lik of unit 'unit 3' is not finite at {CHECKED_DRAWS} of "
        rf"{CHECKED_DRAWS} prior draws; check its data and the priors",
    ),
    "plus infinity": (
        {"log_lik": lambda params, data: -infinite_at_negative_mu(params, data)},
        r"model 'bad': log_lik of unit 'unit 2' is infinite at ([1-9]|1\d) of 20 prior draws: is a",
    ),
    "impossible at all draws": (
        {"log_lik": lambda params, data: log_lik(params, data).at[3].set(-jnp.inf)},
        r"model 'bad': log_lik of unit 'unit 3' is -inf at 20 of 20 prior draws, and at each of",
    ),
    "impossible in turn": (
        {"log_lik": one_impossible_in_turn},
        r"model 'bad': log_lik of unit 'unit [12]' is -inf at 1\d of 20 prior draws, and at each",
    ),
    "gradient of an impossible unit": (
        {"log_lik": root_of_an_impossible_unit},
        r"model 'bad': the gradient in 'mu' is not finite at ([1-9]|1\d) of 20 prior draws; look",
    ),
    "supports disagree": (
        {"log_prior": lambda params: jnp.log(params["mu"])},
        r"model 'bad': log_prior is not finite at draws from `init`; do they agree",
    ),
    "an index beyond the end": (
        {"log_lik": lambda params, data: params["theta"][data["group"] + 1]},
        r"model 'bad': an index into 'theta' goes beyond its end, .*: does one count from 1\?",
    ),
    "gradient": (
        {"log_prior": root_at_its_bound},
        r"model 'bad': the gradient in 'mu' is not finite at 20 of 20 prior draws; look for sqrt",
    ),
}


@pytest.mark.parametrize(("change", "message"), VALUES.values(), ids=VALUES)
def test_values_that_are_not_finite_are_refused(change, message):
    with pytest.raises(PcvError, match=message):
        check_values(MODEL._replace(**change), DATA, "bad", UNITS)


@pytest.mark.parametrize("bound", [1.0, -0.5])
def test_points_about_the_mode_decide(bound, monkeypatch):
    """Of a density that is not a number at half of the draws, far from the mode or about it."""
    as_it_is = values.points

    def spread(init, number):
        return as_it_is(init, number) | {"mu": np.tile(np.linspace(-8, 8, number), 2)}

    monkeypatch.setattr(values, "points", spread)

    def only_below(params, data):
        return log_lik(params, data).at[2].add(jnp.where(params["mu"] < bound, 0.0, jnp.nan))

    model, said = MODEL._replace(log_lik=only_below), r"log_lik of unit 'unit 2' is not finite at"
    if bound == 1.0:
        with pytest.warns(UserWarning, match=f"{said} 9 of 20 prior draws, and finite about the"):
            check_values(model, DATA, "some", UNITS)
    else:
        with pytest.raises(PcvError, match=f"{said} 11 of 20 prior draws; check"):
            check_values(model, DATA, "some", UNITS)


def test_a_gradient_that_overflows_at_some_draws_is_told(monkeypatch):
    """At five draws of given values: at random it might be none of them, or most."""
    as_it_is = values.points

    def spread(init, number):
        return as_it_is(init, number) | {"mu": np.tile(np.linspace(-1, 1, number), 2)}

    monkeypatch.setattr(values, "points", spread)

    def far_away(params, data):
        return log_lik(params, data).at[2].add(0.0 * jnp.sqrt(jnp.maximum(params["mu"] + 0.5, 0.0)))

    said = r"the gradient in 'mu' is not finite at 5 of 20 prior draws, perhaps by overflow"
    with pytest.warns(UserWarning, match=said):
        check_values(MODEL._replace(log_lik=far_away), DATA, "some", UNITS)


def test_what_jax_cannot_derive_is_refused():
    def by_beta(params, data):
        terms = log_lik(params, data)
        return terms + jax.scipy.special.betainc(1.0 + params["mu"] ** 2, 2.0, 0.3)

    said = (
        r"model 'beta': the gradient of its log_lik fails: ValueError: Betainc gradient .*; JAX "
        r"has no derivative of this distribution: take zero-inflated"
    )
    with pytest.raises(PcvError, match=said):
        check_values(MODEL._replace(log_lik=by_beta), DATA, "beta", UNITS)


def test_a_unit_that_is_impossible_at_some_draws_is_told():
    said = (
        r"log_lik of unit 'unit 2' is -inf at ([1-9]|1\d) of 20 prior draws: right if it is "
        r"\(nearly\) impossible"
    )
    with pytest.warns(UserWarning, match=said):
        check_values(MODEL._replace(log_lik=infinite_at_negative_mu), DATA, "some", UNITS)


RATES = {"y": np.array([3, 5, 9, 20, 31]), "x": np.array([1.0, 25.0, 50.0, 75.0, 100.0])}


def rates(width, **changes):
    """A Poisson regression on a predictor that is not standardised."""

    def log_prior(params):
        return dist.Normal(0.0, width).log_prob(jnp.stack([params["a"], params["b"]])).sum()

    def log_lik(params, data):
        return dist.Poisson(jnp.exp(params["a"] + params["b"] * data["x"])).log_prob(data["y"])

    def init(key):
        a, b = width * jax.random.normal(key, (2,))
        return {"a": a, "b": b}

    return Model(init, log_prior, log_lik, dict, Outcome("y"))._replace(**changes)


@pytest.mark.parametrize("width", [30.0, 100.0])  # false alarm < 1e-4: 41% of draws overflow
def test_overflow_under_vague_priors_is_told(width):
    data = RATES | {"unit": np.arange(5)}
    with pytest.warns(UserWarning, match=r"'vague': log_lik is NaN at \d+ of 20 prior draws"):
        check_values(rates(width), data, "vague", UNITS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_values(rates(0.1), data, "sound", UNITS)


def test_vague_priors_hide_nothing():
    def nan_at_unit_3(params, data):
        return rates(100.0).log_lik(params, data).at[3].set(jnp.nan)

    data = RATES | {"unit": np.arange(5)}
    with pytest.raises(PcvError, match="log_lik of unit 'unit 3' is not finite at"):
        check_values(rates(100.0, log_lik=nan_at_unit_3), data, "bad", UNITS)


def test_a_marginal_that_is_not_finite_names_its_fold():
    def nan_of_group_b(params, data, test):
        joint, pointwise = marginal(params, data, test)
        return jnp.where(data["group"][test[0]] == 1, jnp.nan, joint), pointwise

    model = MODEL._replace(marginal=nan_of_group_b)
    with pytest.raises(
        PcvError, match="'bad': marginal of fold 'group 1' is not finite at 40 of 40 prior"
    ):
        check_marginal(model, DATA, "bad", WHOLE)


def test_a_marginal_may_overflow_where_the_likelihood_does():
    def of_likelihood(params, data, test):
        pointwise = jnp.where(test >= 0, rates(100.0).log_lik(params, data)[test], 0.0)
        return pointwise.sum(), pointwise

    data, folds = RATES | {"unit": np.arange(5)}, leave_one_out(UNITS)
    check_marginal(rates(100.0, marginal=of_likelihood), data, "vague", folds)

    def nowhere(params, data, test):
        joint, pointwise = of_likelihood(params, data, test)
        return joint * jnp.nan, pointwise

    for width in (100.0, 1e6):  # at whose draws some unit, or all, overflow
        with pytest.raises(PcvError, match="'bad': marginal of fold 'unit 0' is not finite at"):
            check_marginal(rates(width, marginal=nowhere), data, "bad", folds)


def test_overflow_is_no_leak():
    data = RATES | {"unit": np.arange(5)}
    folds = leave_one_out(UNITS)
    assert check_gap(lambda data: rates(100.0), data, "y", folds, UNITS, "vague") == ""


def test_a_model_may_count_its_groups_while_others_terms_are_asked_for():
    """NumPy needs values, which data that are put on a device within a program have not."""

    def log_lik(params, data):
        number = len(np.unique(data["group"]))
        return dist.Normal(params["theta"][:number][data["group"]], 1.0).log_prob(data["y"])

    folds = leave_one_group_out(GROUP)
    assert given_tested(lambda data: MODEL._replace(log_lik=log_lik), DATA, "y", folds) == 0


DIMS = {
    "no variable": (
        {"dims": {"nu": ["a"]}},
        "dims of 'nu', which is not a variable; there are mu",
    ),
    "too few": (
        {"dims": {"theta": []}},
        r"dims of 'theta' are \[\]; give a list of 1 different names for its shape \(2,\)",
    ),
    "a text": ({"dims": {"theta": "site"}}, "dims of 'theta' are 'site'; give a list of 1"),
    "a variable's name": ({"dims": {"theta": ["mu"]}}, "dimension 'mu' of 'theta' has the name of"),
    "a number of coords": (
        {"dims": {"theta": ["site"]}, "coords": {"site": ["a"]}},
        r"dimension 'site' has 2 elements in 'theta' and 1 elsewhere \(dims, coords\)",
    ),
}


@pytest.mark.parametrize(("change", "message"), DIMS.values(), ids=DIMS)
def test_dimensions_that_do_not_fit_are_refused(change, message):
    with pytest.raises(PcvError, match=f"model 'bad': {message}"):
        check_shapes(MODEL._replace(**change), DATA, 5, "y", "bad")


def test_the_worst_unit_is_named():
    def both(params, data):
        return infinite_at_negative_mu(params, data).at[3].set(jnp.nan)

    with pytest.raises(PcvError, match="log_lik of unit 'unit 3' is not finite at 20 of 20"):
        check_values(MODEL._replace(log_lik=both), DATA, "bad", UNITS)


WHOLE = leave_one_group_out(GROUP, "group")
TOGETHER = from_sets(["both", "again"], [np.arange(5), np.arange(2)], None, 5)
GAPPED = from_sets(["a"], [np.array([0])], [np.array([1])], 5)
PARTS = leave_one_out(UNITS)


@pytest.mark.parametrize(
    ("setting", "model", "folds", "expected"),
    [
        ("auto", MODEL, WHOLE, "marginal"),
        ("auto", MODEL, TOGETHER, "marginal"),
        ("auto", MODEL, GAPPED, "marginal"),
        ("auto", MODEL, PARTS, "plain"),
        ("auto", MODEL, kfold(UNITS, 2, seed=1), "plain"),
        ("auto", MODEL._replace(group=None), WHOLE, "marginal"),
        ("auto", MODEL._replace(marginal=None), WHOLE, "marginal"),
        ("plain", MODEL, WHOLE, "plain"),
        ("plain", MODEL._replace(marginal=None), PARTS, "plain"),
        ("marginal", MODEL, WHOLE, "marginal"),
        ("marginal", MODEL._replace(group=None), PARTS, "marginal"),
    ],
)
def test_the_predictive_fits_model_and_folds(setting, model, folds, expected):
    assert choose(setting, model, "rats", DATA, folds).predictive == expected


def test_a_marginal_predictive_that_does_not_hold_is_refused():
    with pytest.raises(
        PcvError, match=r"model 'rats': its marginal .* but fold 'unit 0' trains on part of a"
    ):
        choose("marginal", MODEL, "rats", DATA, PARTS)
    with pytest.raises(PcvError, match=r"model 'rats': no fold leaves out a whole group that"):
        choose("marginal", MODEL._replace(marginal=None), "rats", DATA, PARTS)


@pytest.mark.parametrize(
    "problem", [PROBLEMS[name] for name in ("hierarchy, plain", "variance", "coin")]
)
def test_draws_of_init_follow_the_prior(problem):
    check_prior(problem().model, 14, "good")


@pytest.mark.parametrize("problem", [coin, variance])
def test_a_missing_jacobian_is_told(problem):
    with pytest.warns(UserWarning, match="do not follow `log_prior` in '(p|variance)'"):
        check_prior(problem(jacobian=False).model, 14, "bad")


def test_draws_on_the_wrong_scale_are_told():
    model = coin().model
    constrained = model._replace(init=lambda key: model.constrain(model.init(key)))
    with pytest.warns(UserWarning, match="does `init` return constrained values"):
        check_prior(constrained, 14, "bad")
