"""What a user writes, and what the sampler sees.

A `Model` is written for one chain and knows nothing of folds: a prior draw, a log prior, and a
log likelihood with one term per unit. `target` turns it into a `Target`, the pair of functions
that cross-validation needs: the density of a fold's posterior and its predictive score.

A Bernoulli model of five units, for example, with one probability on (0, 1):

>>> import jax, numpyro.distributions as dist
>>> space = support({"p": dist.constraints.unit_interval})
>>> def log_prior(params):
...     p = space.constrain(params)["p"]
...     return dist.Beta(2, 2).log_prob(p) + space.log_jacobian(params)
>>> coin = Model(
...     init=lambda key: space.unconstrain({"p": dist.Beta(2, 2).sample(key)}),
...     log_prior=log_prior,
...     log_lik=lambda params, data: dist.Bernoulli(
...         space.constrain(params)["p"]).log_prob(data["y"]),
...     constrain=space.constrain,
...     outcome=Outcome("y"),
... )
"""

import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key
from numpyro.distributions import biject_to
from numpyro.distributions.constraints import Constraint

from pcv.devices import RUN_ONCE
from pcv.errors import PcvError, in_one_line
from pcv.folds import Folds, train_mask

Params = dict[str, Array]
Data = Mapping[str, Any]
Scalar = Float[Array, ""]


class Outcome(NamedTuple):
    """The variable whose density is scored, and the scale on which it is a density.

    Scores of models with different outcomes are never compared: a log density of log y and one
    of y differ by a Jacobian.

    Args:
        name: of the variable, the config's `data.outcome`.
        scale: on which its density is one, "log" for example.
        discrete: whether its density is a probability; None: not said, so that whole numbers are
            refused by scores that take derivatives in it.
    """

    name: str
    scale: str = "identity"
    discrete: bool | None = None

    def __str__(self) -> str:
        return self.name if self.scale == "identity" else f"{self.scale}({self.name})"


class Fold(NamedTuple):
    """One fold, as one chain sees it."""

    train: Bool[Array, " unit"]
    """which units the posterior is conditioned on"""
    test: Int[Array, " slot"]
    """indices of the units that are scored, padded with -1"""


Predictive = tuple[Scalar, Float[Array, " slot"]]


class Observations(NamedTuple):
    """The rows that a front-end's model was made with, one per observed value.

    Args:
        columns: values by name, and arrays of other sizes.
        order: columns that tell the rows apart, and name them, in the order of the model's terms.
        units: columns whose values make one unit of several rows; none: each row is a unit.
        labels: of those two, columns that others name the units by.
    """

    columns: Mapping[str, np.ndarray]
    order: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}


class Model(NamedTuple):
    """A Bayesian model for one chain; pcv adds folds, chains and devices.

    Args:
        init: a draw from the prior, on the unconstrained scale.
        log_prior: log prior density of the unconstrained parameters: the Jacobian is part of it.
        log_lik: log likelihood, one term per unit. Units left out are masked after they are
            computed, so every term needs a finite gradient wherever the chains of a fold may go,
            also where its unit is impossible: `jnp.where(inside, x, safe)` before the density,
            -inf after it.
        constrain: the named variables of the posterior.
        outcome: what is scored.
        marginal: joint and pointwise log predictive of the units in `test` (padded with -1), with
            the left-out groups' own effects integrated out analytically.
        group: the group of each unit whose effects `marginal` integrates out: it holds only for
            folds that leave out whole groups; without it, `marginal` is used only where the config
            asks for it.
        predict: one replicate of the outcome of every unit, for scores that need draws of it
            (CRPS, ...).
        moments: mean and variance of the outcome of every unit given the parameters, each of shape
            (unit): scores of moments (DSS, RMSE, ...) are far less noisy with it than with
            replicates.
        marginal_predict: one replicate of the units in `test` under the predictive of `marginal`:
            the left-out groups' own effects drawn anew, given the other parameters.
        marginal_moments: mean (slot) and covariance (slot, slot) of the units in `test` under the
            predictive of `marginal`.
        data: what the model was made with, where a front-end made it.
        fold_prior: log prior of a fold with these `test` units, in place of `log_prior`, under the
            marginal predictive: any function with the same marginal posterior of the parameters
            that are not integrated out.
    """

    init: Callable[[Key[Array, ""]], Params]
    log_prior: Callable[[Params], Scalar]
    log_lik: Callable[[Params, Data], Float[Array, " unit"]]
    constrain: Callable[[Params], Mapping[str, Array]]
    outcome: Outcome
    marginal: Callable[[Params, Data, Int[Array, " slot"]], Predictive] | None = None
    group: Int[np.ndarray, " unit"] | None = None
    predict: Callable[[Key[Array, ""], Params, Data], Float[Array, " unit"]] | None = None
    moments: Callable[[Params, Data], tuple[Array, Array]] | None = None
    marginal_predict: (
        Callable[[Key[Array, ""], Params, Data, Int[Array, " slot"]], Float[Array, " slot"]] | None
    ) = None
    marginal_moments: Callable[[Params, Data, Int[Array, " slot"]], tuple[Array, Array]] | None = (
        None
    )
    data: Observations | None = None
    fold_prior: Callable[[Params, Int[Array, " slot"]], Scalar] | None = None


class Target(NamedTuple):
    """All that the sampler sees. Models whose likelihood does not factorise give it directly.

    Args:
        init: a draw from the prior: named parameters, or one vector after `flat_target`.
        log_density: log density of the fold's posterior, up to a constant.
        log_predictive: log predictive of the fold's test set: joint, and pointwise by slot.
        observed: outcome of the test set; what follows is needed only for scores other than the
            log score.
        density: `log_predictive` of other outcomes of the test set.
        predict: a replicate of the test set.
        moments: mean and variance, or covariance, of the test set given the parameters.
    """

    init: Callable[[Key[Array, ""]], Any]
    log_density: Callable[[Any, Fold], Scalar]
    log_predictive: Callable[[Any, Fold], Predictive]
    observed: Callable[[Fold], Float[Array, " slot"]] | None = None
    density: Callable[[Any, Fold, Float[Array, " slot"]], Predictive] | None = None
    predict: Callable[[Key[Array, ""], Any, Fold], Float[Array, " slot"]] | None = None
    moments: Callable[[Any, Fold], tuple[Array, Array]] | None = None


class Support(NamedTuple):
    """The way between unconstrained parameters and their supports, names unchanged."""

    constrain: Callable[[Params], Params]
    unconstrain: Callable[[Params], Params]
    log_jacobian: Callable[[Params], Scalar]


def support(constraints: Mapping[str, Constraint]) -> Support:
    r"""Bijections of named parameters onto their supports.

    A density :math:`p(\theta)` of constrained parameters becomes, on the unconstrained scale,
    :math:`p(\theta(u))\,|\partial\theta/\partial u|`; ``log_jacobian`` is the logarithm of the
    second factor, summed over all named parameters. Parameters without an entry pass unchanged.

    >>> from numpyro.distributions import constraints
    >>> space = support({"sigma": constraints.positive})
    >>> float(space.constrain({"sigma": jnp.array(0.0), "mu": jnp.array(3.0)})["sigma"])
    1.0
    """
    to = {name: biject_to(constraint) for name, constraint in constraints.items()}

    def constrain(params: Params) -> Params:
        return {name: to[name](u) if name in to else u for name, u in params.items()}

    def unconstrain(values: Params) -> Params:
        return {name: to[name].inv(x) if name in to else x for name, x in values.items()}

    def log_jacobian(params: Params) -> Scalar:
        terms = [
            jnp.sum(bijector.log_abs_det_jacobian(params[name], bijector(params[name])))
            for name, bijector in to.items()
        ]
        return jnp.sum(jnp.stack(terms)) if terms else jnp.zeros(())

    return Support(constrain, unconstrain, log_jacobian)


def numeric(data: Data) -> dict[str, Array]:
    """The part of the data that `log_lik` and `marginal` get: all but text and dates.

    >>> list(numeric({"day": np.array([8, 15]), "name": np.array(["a", "b"])}))
    ['day']
    """
    return {name: jnp.asarray(x) for name, x in data.items() if np.asarray(x).dtype.kind in "biuf"}


def target(model: Model, data: Data, predictive: str) -> Target:
    r"""The posterior and the predictive of every fold of a model.

    .. math::
        \log p(\theta \mid y_\mathrm{train}) = \log p(\theta) +
        \sum_{i\in\mathrm{train}} \log p(y_i\mid\theta) + c,\qquad
        s = \sum_{i\in\mathrm{test}} \log p(y_i\mid\theta)

    Args:
        model: the model; its `log_lik` has one term per unit.
        data: its data; `log_lik` gets the `numeric` part of them.
        predictive: "plain": `s` as above; "marginal": the model's own `marginal`.
    """
    arrays = numeric(data)
    outcome = arrays.get(model.outcome.name)

    def log_density(params: Params, fold: Fold) -> Scalar:
        terms = model.log_lik(params, arrays)
        of_train = jnp.sum(jnp.where(fold.train, terms, 0.0))
        if predictive == "marginal" and model.fold_prior is not None:
            return model.fold_prior(params, fold.test) + of_train
        return model.log_prior(params) + of_train

    def predictive_of(params: Params, fold: Fold, arrays: Data) -> Predictive:
        if predictive == "marginal":
            assert model.marginal is not None
            return model.marginal(params, arrays, fold.test)
        terms = model.log_lik(params, arrays)[fold.test]
        pointwise = jnp.where(fold.test >= 0, terms, 0.0)
        return jnp.sum(pointwise), pointwise

    def observed(fold: Fold) -> Float[Array, " slot"]:
        return jnp.asarray(outcome, jnp.result_type(float))[fold.test]

    def density(params: Params, fold: Fold, y: Float[Array, " slot"]) -> Predictive:
        whole = jnp.asarray(outcome, y.dtype)
        place = jnp.where(fold.test >= 0, fold.test, whole.shape[0])
        changed = whole.at[place].set(y, mode="drop")
        return predictive_of(params, fold, {**arrays, model.outcome.name: changed})

    if predictive == "marginal":
        replicate, moments = model.marginal_predict, model.marginal_moments
    else:
        replicate, moments = _of_test(model)
    return Target(
        model.init,
        log_density,
        lambda params, fold: predictive_of(params, fold, arrays),
        observed,
        density,
        replicate and (lambda key, params, fold: replicate(key, params, arrays, fold.test)),
        moments and (lambda params, fold: moments(params, arrays, fold.test)),
    )


def _of_test(model: Model) -> tuple[Callable[..., Array] | None, Callable[..., tuple] | None]:
    """`predict` and `moments` of a model, of the units of a test set alone."""
    predict, moments = model.predict, model.moments
    return (
        predict and (lambda key, params, data, test: predict(key, params, data)[test]),
        moments
        and (lambda params, data, test: jax.tree.map(lambda x: x[test], moments(params, data))),
    )


def flat_target(target: Target) -> tuple[Target, Callable[[Float[Array, " param"]], Params]]:
    """The same target on parameters laid out as one vector, and the way back to their names."""
    from jax.flatten_util import ravel_pytree

    example = jax.eval_shape(target.init, jax.random.key(0))
    _, unravel = ravel_pytree(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), example))
    density, predict, moments = target.density, target.predict, target.moments
    flat = Target(
        lambda key: ravel_pytree(target.init(key))[0],
        lambda position, fold: target.log_density(unravel(position), fold),
        lambda position, fold: target.log_predictive(unravel(position), fold),
        target.observed,
        density and (lambda position, fold, y: density(unravel(position), fold, y)),
        predict and (lambda key, position, fold: predict(key, unravel(position), fold)),
        moments and (lambda position, fold: moments(unravel(position), fold)),
    )
    return flat, unravel


def param_names(target: Target) -> list[str]:
    """Names of the entries of the flat parameter vector, in order: ``mu``, ``alpha[0]``, ...

    >>> param_names(Target(lambda key: {"b": jnp.zeros(2), "a": jnp.zeros(())}, None, None))
    ['a', 'b[0]', 'b[1]']
    """
    shapes = jax.eval_shape(target.init, jax.random.key(0))
    names = []
    for name in sorted(shapes):
        for index in np.ndindex(shapes[name].shape):
            names.append(f"{name}[{', '.join(map(str, index))}]" if index else name)
    return names


def check_shapes(model: Model, data: Data, num_units: int, outcome: str, name: str) -> None:
    """Do the functions of a model fit together and the data? Traces them without running them.

    Args:
        model, name: the model.
        data: its data.
        num_units: number of units of the data.
        outcome: the data's outcome, which must be the model's.

    Raises:
        PcvError: naming the model, its function and what that returns instead.
    """
    where = f"model '{name}'"
    if not isinstance(model.outcome, Outcome):
        raise PcvError(f"{where}: outcome is {model.outcome!r}, not a pcv.Outcome")
    if model.outcome.name != outcome:
        raise PcvError(
            f"{where}: its outcome is '{model.outcome.name}', that of the data is '{outcome}' "
            "(data.outcome); they must be the same"
        )
    arrays = numeric(data)
    params = _traced(where, "init", model.init, data, jax.random.key(0))
    if not isinstance(params, dict) or not params:
        raise PcvError(f"{where}: init returns {_kind(params)}, not a dict of named parameters")
    for parameter, x in params.items():
        if not (hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)):
            raise PcvError(
                f"{where}: init returns {_kind(x)} for '{parameter}'; every parameter must be a "
                "number or an array of numbers with a decimal point (0.0, not 0)"
            )
    terms = _traced(where, "log_lik", lambda p: model.log_lik(p, arrays), data, params)
    if getattr(terms, "shape", None) != (num_units,):
        raise PcvError(
            f"{where}: log_lik returns {_kind(terms)}; it must return one term per unit of the "
            f"data, an array of shape ({num_units},)"
        )
    prior = _traced(where, "log_prior", model.log_prior, data, params)
    if getattr(prior, "shape", None) != ():
        raise PcvError(f"{where}: log_prior returns {_kind(prior)}; it must return one number")
    variables = _traced(where, "constrain", model.constrain, data, params)
    if not isinstance(variables, Mapping) or not variables:
        raise PcvError(f"{where}: constrain returns {_kind(variables)}, not a dict of variables")
    if model.group is not None and np.shape(model.group) != (num_units,):
        raise PcvError(
            f"{where}: group has shape {np.shape(model.group)}; it must name the group of each "
            f"unit, shape ({num_units},)"
        )
    test = jnp.zeros(2, int)
    _check_replicates(model, data, num_units, where, params, test)
    marginal = model.marginal
    if marginal is None:
        return
    scores = _traced(where, "marginal", lambda p, t: marginal(p, arrays, t), data, params, test)
    found = scores if isinstance(scores, tuple) else ()
    if [getattr(x, "shape", None) for x in found] != [(), (2,)]:
        raise PcvError(
            f"{where}: marginal returns {' and '.join(map(_kind, found)) or _kind(scores)} for "
            "two slots; it must return the joint score, one number, and the pointwise ones, one "
            "per slot"
        )


def _check_replicates(
    model: Model, data: Data, num_units: int, where: str, params: Any, test: Array
) -> None:
    """The shapes of replicates and moments, where a model has them."""
    arrays, key = numeric(data), jax.random.key(0)
    every, two = (num_units,), (2,)
    kinds: list[tuple[str, Callable[..., Any] | None, tuple, list[tuple]]] = [
        ("predict", model.predict, (key, params, arrays), [every]),
        ("moments", model.moments, (params, arrays), [every, every]),
        ("marginal_predict", model.marginal_predict, (key, params, arrays, test), [two]),
        ("marginal_moments", model.marginal_moments, (params, arrays, test), [two, (2, 2)]),
    ]
    for part, function, args, wanted in kinds:
        if function is None:
            continue
        made = _traced(where, part, function, data, *args)
        found = made if isinstance(made, tuple) else (made,)
        if [getattr(x, "shape", None) for x in found] != wanted:
            raise PcvError(
                f"{where}: {part} returns {' and '.join(map(_kind, found))}; it must return "
                f"{' and '.join(f'an array of shape {shape}' for shape in wanted)}"
                f"{' for two slots' if part.startswith('marginal') else ''}"
            )


def _traced(where: str, part: str, function: Callable[..., Any], data: Data, *args: Any) -> Any:
    """The shapes that one function of a model returns; its own error in one line."""
    try:
        return jax.eval_shape(function, *args)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if "site-packages" not in f.filename and f.filename != __file__]
        at = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
        said = in_one_line(error)
        if isinstance(error, jax.errors.JAXTypeError):
            said += "; write it with jax.numpy, and jnp.where instead of if"
        elif isinstance(error, KeyError) and error.args[0] in data:
            said += ": text reaches only the function that builds the model; recode it there"
        raise PcvError(f"{where}: {part} fails{at}: {said}") from error


def _kind(x: Any) -> str:
    """What a function returned, in words."""
    if hasattr(x, "shape"):
        return f"an array of {x.dtype}, shape {x.shape}"
    return f"an object of type {type(x).__name__}"


CHECKED_DRAWS, CHECKED_FOLDS = 20, 50
"""prior draws at which `check_values` and `check_marginal` look, and folds of the latter"""
PRIOR_DRAWS, MAX_PRIOR_Z = 1000, 6.0
"""prior draws of `check_prior`, and the z-score that it warns of"""


def _once(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`function` over draws, compiled for a single call."""
    return jax.jit(jax.vmap(function), compiler_options=RUN_ONCE)


def _drawn(model: Model, number: int) -> Params:
    """Draws from the prior."""
    drawn: Params = _once(model.init)(jax.random.split(jax.random.key(0), number))
    return drawn


def check_values(model: Model, data: Data, name: str, units: list[str]) -> None:
    """Are the log likelihood terms, the log prior and their gradient finite at prior draws?

    Terms of units that are impossible at some draws may be -inf there, not their gradients.

    Raises:
        PcvError: naming the unit or parameter that is not finite at the most prior draws, or the
            unit that is impossible at the most of them where no draw makes all units possible.

    Warns:
        UserWarning: units are impossible at some prior draws.
    """
    draws, arrays = CHECKED_DRAWS, numeric(data)
    params = _drawn(model, draws)
    terms = np.asarray(_once(lambda p: model.log_lik(p, arrays))(params))
    impossible = np.isneginf(terms)
    bad = ~np.isfinite(terms) & ~impossible

    def said(wrong: Bool[np.ndarray, "draw unit"], value: str) -> str:
        unit = int(np.argmax(wrong.sum(0)))
        return (
            f"model '{name}': log_lik of unit '{units[unit]}' is {value} at "
            f"{int(wrong[:, unit].sum())} of {draws} prior draws"
        )

    if bad.any():
        raise PcvError(f"{said(bad, 'not finite')}; check its data and the priors")
    if impossible.any(1).all():
        raise PcvError(
            f"{said(impossible, '-inf')}, and at each of them some unit is impossible; check its "
            "data and the priors"
        )

    def log_density(params: Params) -> Scalar:
        terms = model.log_lik(params, arrays)
        return model.log_prior(params) + jnp.sum(jnp.where(jnp.isneginf(terms), 0.0, terms))

    values, grads = _once(jax.value_and_grad(log_density))(params)
    if not np.isfinite(np.asarray(values)).all():
        raise PcvError(
            f"model '{name}': log_prior is not finite at draws from `init`; do "
            "they agree on the supports?"
        )
    for parameter, grad in grads.items():
        if not np.isfinite(np.asarray(grad)).all():
            raise PcvError(
                f"model '{name}': the gradient in '{parameter}' is not finite at some prior draws; "
                "look for sqrt, log or division at a bound"
            )
    if impossible.any():
        warnings.warn(
            f"{said(impossible, '-inf')}: right if it is impossible there, else check its data",
            stacklevel=2,
        )


def check_prior(model: Model, name: str) -> None:
    r"""Does `init` draw from `log_prior`? If so, the mean of its gradient is zero:

    .. math:: E_{p(u)} \left[ \nabla_u \log p(u) \right] = 0

    Models of a front-end draw from their priors, or these are improper.

    Warns:
        UserWarning: naming the parameter whose mean gradient is furthest from it.
    """
    if model.data is not None:
        return
    keys = jax.random.split(jax.random.key(0), PRIOR_DRAWS)

    def gradient(key: Key[Array, ""]) -> Params:
        return jax.grad(model.log_prior)(model.init(key))

    gradients = jax.jit(lambda keys: jax.lax.map(gradient, keys), compiler_options=RUN_ONCE)
    worst = {}
    for parameter, grad in gradients(keys).items():
        grad = np.asarray(grad, np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            z = np.abs(grad.mean(0)) / (grad.std(0) / np.sqrt(PRIOR_DRAWS))
        worst[parameter] = float(np.nan_to_num(z, nan=0.0).max(initial=0.0))
    parameter = max(worst, key=lambda name: worst[name])
    if worst[parameter] > MAX_PRIOR_Z:
        warnings.warn(
            f"model '{name}': draws from `init` do not follow `log_prior` in '{parameter}' (its "
            f"mean gradient is {worst[parameter]:.0f} standard errors from 0): is the Jacobian "
            "missing, or does `init` return constrained values?",
            stacklevel=2,
        )


def check_gap(
    make: Callable[[Data], Model],
    data: Data,
    outcome: str,
    folds: Folds,
    units: list[str],
    name: str,
) -> None:
    """Does what a fold trains on depend on the outcomes that it tests, through lags for example?

    The outcomes that the fold in the middle tests are changed; terms of its training units that
    change with them are conditioned on what is to be predicted.

    Args:
        make: makes the model of data.
        data: columns and constants, and `unit`.
        outcome: name of the outcome's column.
        folds: of the experiment.
        units: names of the units.
        name: of the model.

    Warns:
        UserWarning: they do.
    """
    middle = len(folds.id) // 2
    values = np.unique(data[outcome])
    following = values[(np.searchsorted(values, data[outcome]) + 1) % values.size]
    tested = np.isin(data["unit"], folds.test[middle])
    changed = {**data, outcome: np.where(tested, following, data[outcome])}
    params = jax.jit(make(data).init)(jax.random.key(0))
    before, after = (
        np.asarray(jax.jit(make(d).log_lik)(params, numeric(d))) for d in (data, changed)
    )
    trained = train_mask(folds, len(before), slice(middle, middle + 1))[0]
    moved = np.flatnonzero(trained & (before != after))
    if moved.size:
        warnings.warn(
            f"model '{name}': terms of {moved.size} unit(s) that fold '{folds.id[middle]}' trains"
            f" on, such as '{units[moved[0]]}', depend on outcomes that it tests (through lags, or"
            " a summary of all outcomes): its score is too good; leave out a wider gap (folds.h),"
            " or make the summary a constant",
            stacklevel=2,
        )


def check_marginal(model: Model, data: Data, name: str, folds: Folds) -> None:
    """Is the model's own `marginal` finite at prior draws, for folds from first to last?

    Raises:
        PcvError: naming the fold in which it is not finite at the most prior draws.
    """
    assert model.marginal is not None
    arrays = numeric(data)
    some = np.unique(np.linspace(0, len(folds.id) - 1, CHECKED_FOLDS).astype(int))
    marginal, test = model.marginal, jnp.asarray(folds.test[some])
    of_folds = _once(lambda p: jax.vmap(lambda units: marginal(p, arrays, units)[0])(test))
    bad = ~np.isfinite(np.asarray(of_folds(_drawn(model, CHECKED_DRAWS))))
    if bad.any():
        fold = int(np.argmax(bad.sum(0)))
        raise PcvError(
            f"model '{name}': marginal of fold '{folds.id[some[fold]]}' is not finite at "
            f"{int(bad[:, fold].sum())} of {CHECKED_DRAWS} prior draws"
        )


def check_whole_groups(model: Model, name: str, folds: Folds) -> None:
    """The model's own `marginal` integrates over the effects of groups it has not seen: it holds
    where every group of a test set is left out as a whole.

    Raises:
        PcvError: it is not, in a fold.
    """
    if model.group is None:
        return
    group = np.asarray(model.group)
    for fold, test, runs in zip(*folds):
        tested = np.isin(group, group[test[test >= 0]])
        left_out = np.zeros(group.size, bool)
        for start, stop in runs:
            left_out[start:stop] = True
        if (tested & ~left_out).any():
            raise PcvError(
                f"model '{name}': its marginal predictive is for groups that are left out as a "
                f"whole, but fold '{fold}' keeps part of a tested group in training; leave out "
                "whole groups, or set predictive: plain"
            )
