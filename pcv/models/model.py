"""The records `Model` and `Target`.

A `Model` is written for one chain and knows nothing of folds: a prior draw, a log prior, and a
log likelihood with one term per unit. `target` turns it into a `Target`, the pair of functions
that cross-validation needs: the density of a fold's posterior, and its predictive score.

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

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key
from numpyro.distributions import biject_to
from numpyro.distributions.constraints import Constraint

from pcv.base import devices
from pcv.folds import columns

devices.setup_if_new()  # models hold arrays, after which JAX cannot add devices

Params = dict[str, Array]
Data = Mapping[str, Any]
Scalar = Float[Array, ""]


class Outcome(NamedTuple):
    """The variable whose density is scored, and the scale of that density.

    Scores of models with different outcomes are never compared: log densities of log y and of y
    differ by a Jacobian.

    Args:
        name: of the variable; `data.outcome` in a config.
        scale: of the density, such as "log".
        discrete: whether the density is a probability mass; None: unknown, so that scores with
            derivatives in the outcome refuse whole numbers.
        ordered: whether larger values rank higher, as ordinal categories and counts do; None:
            unknown, so that the ranked probability score refuses more than two.
        categories: number of categories 0, 1, …; None: one more than the largest value.
    """

    name: str
    scale: str = "identity"
    discrete: bool | None = None
    ordered: bool | None = None
    categories: int | None = None

    def __str__(self) -> str:
        return self.name if self.scale == "identity" else f"{self.scale}({self.name})"


class Fold(NamedTuple):
    """One fold, as one chain sees it."""

    train: Bool[Array, " unit"]
    """mask of the units that the posterior is conditioned on"""
    test: Int[Array, " slot"]
    """indices of the scored units, padded with -1"""


Predictive = tuple[Scalar, Float[Array, " slot"]]  # joint and pointwise
Test = Int[Array, " slot"]  # indices of the scored units, padded with -1


class LogLik(Protocol):
    """Log likelihood, one term per unit."""

    def __call__(self, params: Params, data: Data, /) -> Float[Array, " unit"]: ...


class Marginal(Protocol):
    """Log predictive of the units in `test`, their groups' own effects integrated out."""

    def __call__(self, params: Params, data: Data, test: Test, /) -> Predictive: ...


class FoldPrior(Protocol):
    """Log prior of a fold that tests the units in `test`."""

    def __call__(self, params: Params, test: Test, /) -> Scalar: ...


class Predict(Protocol):
    """One replicate of the outcome: of every unit, or row of the data."""

    def __call__(
        self, key: Key[Array, ""], params: Params, data: Data, /
    ) -> Float[Array, " row"]: ...


class Cdf(Protocol):
    """Probability that the outcome of every row of the data is at most y."""

    def __call__(
        self, params: Params, data: Data, y: Float[Array, " row"], /
    ) -> Float[Array, " row"]: ...


class MarginalCdf(Protocol):
    """Probability that the outcomes of the units in `test` are at most y, given other parameters
    than their groups' own effects, or with effects drawn by `key`."""

    def __call__(
        self, key: Key[Array, ""], params: Params, data: Data, test: Test, y: Array, /
    ) -> Float[Array, "slot ..."]: ...


class MarginalPredict(Protocol):
    """One replicate of the units in `test`."""

    def __call__(
        self, key: Key[Array, ""], params: Params, data: Data, test: Test, /
    ) -> Float[Array, "slot ..."]: ...


class Moments(Protocol):
    """Mean and variance of the outcome of every unit."""

    def __call__(
        self, params: Params, data: Data, /
    ) -> tuple[Float[Array, " unit"], Float[Array, " unit"]]: ...


class MarginalMoments(Protocol):
    """Mean and covariance of the units in `test`."""

    def __call__(
        self, params: Params, data: Data, test: Test, /
    ) -> tuple[Float[Array, " slot"], Float[Array, "slot slot"]]: ...


class LogDensity(Protocol):
    """Log density of a fold's posterior, up to a constant."""

    def __call__(self, params: Any, fold: Fold, /) -> Scalar: ...


class LogPredictive(Protocol):
    """Log predictive of a fold's test set."""

    def __call__(self, params: Any, fold: Fold, /) -> Predictive: ...


class DensityAt(Protocol):
    """Log predictive of a fold's test set at other outcomes."""

    def __call__(self, params: Any, fold: Fold, y: Float[Array, " slot"], /) -> Predictive: ...


class PredictTest(Protocol):
    """One replicate of a fold's test set."""

    def __call__(
        self, key: Key[Array, ""], params: Any, fold: Fold, /
    ) -> Float[Array, "slot ..."]: ...


class CdfOfTest(Protocol):
    """Probability that the outcomes of a fold's test set are at most y, each on its own."""

    def __call__(
        self, key: Key[Array, ""], params: Any, fold: Fold, y: Float[Array, "slot ..."], /
    ) -> Float[Array, "slot ..."]: ...


class LogPath(Protocol):
    """Log density of each unit of a fold's test set, given simulated outcomes before it."""

    def __call__(
        self, key: Key[Array, ""], params: Any, fold: Fold, /
    ) -> Float[Array, " slot"]: ...


class MomentsOfTest(Protocol):
    """Mean of a fold's test set, and its variance or covariance."""

    def __call__(self, params: Any, fold: Fold, /) -> tuple[Array, Array]: ...


class Observations(NamedTuple):
    """The data of a front-end's model, one row per observed value.

    Args:
        columns: values by name, and arrays of other sizes.
        order: columns that identify and name the rows, in the order of the model's terms.
        units: columns whose values group rows into units; none: each row is a unit.
        labels: columns to name units by, in place of those in `order` and `units`.
        fixed: whether the model holds them as constants, and reads the outcome alone from its data.
        missing: what is missing; None: nothing.
        times: how often each of all units counts: 0 if its outcome is missing, else 1, or its
            frequency; None: all once.
    """

    columns: Mapping[str, np.ndarray]
    order: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    labels: Mapping[str, str] = {}
    fixed: bool = False
    missing: columns.Missing | None = None
    times: Int[np.ndarray, " all_unit"] | None = None


class Model(NamedTuple):
    """A Bayesian model for one chain; pcv adds folds, chains and devices.

    Args:
        init: a draw from the prior, on the unconstrained scale.
        log_prior: log prior density of the unconstrained parameters: the Jacobian is part of it.
        log_lik: log likelihood, one term per unit. Left-out units are masked after they are
            computed, so every term needs a finite gradient wherever the chains of a fold may go,
            even where its unit is impossible: `jnp.where(inside, x, safe)` before the density,
            -inf after it.
        constrain: the named variables of the posterior.
        outcome: what is scored.
        marginal: joint and pointwise log predictive of the units in `test` (padded with -1), with
            the left-out groups' own effects integrated out analytically.
        group: the group of each unit whose effects `marginal` integrates out, which is valid only
            for folds that leave out whole groups; without it, `marginal` is used only on request.
        predict: one replicate of the outcome, for predictions and for scores that need draws of it
            (CRPS, ...): a value for every unit or, where units have several rows, for every row.
            Lags that it computes from `data` can be simulated (`predict: path`).
        cdf: probability that the outcome is at most y, of the shape of `predict`: PITs are far less
            noisy with it than with replicates.
        moments: mean and variance of the outcome of every unit given the parameters, each of shape
            (unit): scores of moments (DSS, RMSE, ...) are far less noisy with them than with
            replicates.
        marginal_predict: one replicate of the units in `test` under the predictive of `marginal`:
            the left-out groups' own effects redrawn, given the other parameters.
        marginal_cdf: probability that the outcomes of the units in `test` are at most y under the
            predictive of `marginal`, perhaps given effects drawn by `key`.
        marginal_moments: mean (slot) and covariance (slot, slot) of the units in `test` under the
            predictive of `marginal`.
        data: of a front-end's model.
        fold_prior: log prior of a fold with these `test` units, in place of `log_prior`, under the
            marginal predictive: any function with the same marginal posterior of the parameters
            that are not integrated out.
        dims: names of the dimensions of the posterior's variables, one per axis.
        coords: names of the elements along dimensions.
        notes: caveats for readers of its scores, one line each.
        unconstrain: the parameters for one draw of the posterior's variables, so that draws of
            another sampler can serve as the full-data fit.
        append: the model of its data with further rows, a table or arrays by name, at their end.
        log_joint: log prior plus the log likelihood of each unit times its weight (unit), where
            that is cheaper than its parts, as for a program of Stan.
        identity: a hash of all that the model computes, where its functions call back into Python.
        factors: names of factors of `log_prior` that `init` knows nothing of, such as potentials.
            With them the prior need not integrate to 1, so that there is no evidence.
    """

    init: Callable[[Key[Array, ""]], Params]
    log_prior: Callable[[Params], Scalar]
    log_lik: LogLik
    constrain: Callable[[Params], Mapping[str, Array]]
    outcome: Outcome
    marginal: Marginal | None = None
    group: Int[np.ndarray, " unit"] | None = None
    predict: Predict | None = None
    moments: Moments | None = None
    cdf: Cdf | None = None
    marginal_predict: MarginalPredict | None = None
    marginal_cdf: MarginalCdf | None = None
    marginal_moments: MarginalMoments | None = None
    data: Observations | None = None
    fold_prior: FoldPrior | None = None
    dims: Mapping[str, Sequence[str]] = {}
    coords: Mapping[str, Sequence[Any] | np.ndarray] = {}
    notes: Sequence[str] = ()
    unconstrain: Callable[[Mapping[str, Array]], Params] | None = None
    append: "Callable[[Any], Model] | None" = None
    log_joint: Callable[[Params, Float[Array, " unit"]], Scalar] | None = None
    identity: str = ""
    factors: Sequence[str] = ()


class Target(NamedTuple):
    r"""All that the sampler sees: a posterior and a predictive for every fold.

    .. math:: \log p(\theta \mid y_\mathrm{train}) + c,\qquad
              \log p(y_\mathrm{test} \mid \theta, y_\mathrm{train})

    `target` makes one from a `Model`. Where the outcomes are not independent given the parameters
    (Gaussian processes, autoregressions with gaps), write it yourself, closed over the data; where
    they are jointly normal, use `normal_target`.

    Args:
        init: a draw from the prior: named parameters, or one vector after `flat_target`.
        log_density: log density of the fold's posterior on the unconstrained scale, up to a
            constant. `fold.train` is a mask of all units; it must ignore outcomes outside it.
        log_predictive: log predictive of the fold's test set given the parameters and the
            training units: joint, and pointwise, one value per slot of `fold.test`, which is padded
            with -1; 0 in padded slots.
        outcome: what is scored.
        constrain: the named variables of the posterior.
        observed: outcome of the test set (slot); this and the next four are needed only for
            predictions, and for scores other than the log score.
        density: `log_predictive` at other outcomes of the test set.
        predict: a replicate of the test set.
        cdf: probability that each outcome of the test set is at most y.
        moments: mean and variance, or covariance, of the test set given the parameters.
        log_path: log density of each tested unit given simulated outcomes before it, in place of
            observed ones; see `pcv.models.paths`. 0 in padded slots.
        dims: names of the dimensions of the posterior's variables, one per axis.
        coords: names of the elements along dimensions.
        reads_test: whether `log_density` reads `fold.test`; if not, the folds share the compiled
            program of the full-data fit.
        calls_back: whether its functions call back into Python, for many chains at once.
    """

    init: Callable[[Key[Array, ""]], Any]
    log_density: LogDensity
    log_predictive: LogPredictive
    outcome: Outcome = Outcome("y")
    constrain: Callable[[Any], Mapping[str, Array]] = dict
    observed: Callable[[Fold], Float[Array, " slot"]] | None = None
    density: DensityAt | None = None
    predict: PredictTest | None = None
    cdf: CdfOfTest | None = None
    moments: MomentsOfTest | None = None
    log_path: LogPath | None = None
    dims: Mapping[str, Sequence[str]] = {}
    coords: Mapping[str, Sequence[Any] | np.ndarray] = {}
    reads_test: bool = True
    calls_back: bool = False


class Support(NamedTuple):
    """Maps between unconstrained parameters and their supports, names unchanged."""

    constrain: Callable[[Params], Params]
    unconstrain: Callable[[Mapping[str, Array]], Params]
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

    def unconstrain(values: Mapping[str, Array]) -> Params:
        return {name: to[name].inv(x) if name in to else x for name, x in values.items()}

    def log_jacobian(params: Params) -> Scalar:
        terms = [
            jnp.sum(bijector.log_abs_det_jacobian(params[name], bijector(params[name])))
            for name, bijector in to.items()
        ]
        return jnp.sum(jnp.stack(terms)) if terms else jnp.zeros(())

    return Support(constrain, unconstrain, log_jacobian)


def numeric(data: Data) -> dict[str, Array]:
    """The data that `log_lik` and `marginal` get: all but text and dates.

    >>> list(numeric({"day": np.array([8, 15]), "name": np.array(["a", "b"])}))
    ['day']
    """
    arrays = {name: np.asarray(x) for name, x in data.items()}
    return jax.device_put({name: x for name, x in arrays.items() if x.dtype.kind in "biuf"})


def target(model: Model | Target, data: Data, predictive: str) -> Target:
    r"""The posterior and the predictive of every fold of a model.

    .. math::
        \log p(\theta \mid y_\mathrm{train}) = \log p(\theta) +
        \sum_{i\in\mathrm{train}} \log p(y_i\mid\theta) + c,\qquad
        s = \sum_{i\in\mathrm{test}} \log p(y_i\mid\theta)

    Args:
        model: the model; a target is returned as it is.
        data: its data; `log_lik` gets the `numeric` part.
        predictive: "plain": `s` as above; "marginal": the model's own `marginal`.
    """
    if isinstance(model, Target):
        return model
    arrays = numeric(data)
    outcome = arrays.get(model.outcome.name)
    marginal = predictive == "marginal"
    of_fold = model.fold_prior if marginal else None
    rows = rows_by_unit(arrays, model.outcome.name)

    def log_density(params: Params, fold: Fold) -> Scalar:
        joint = log_joint(model, params, arrays, fold.train)
        if of_fold is None:
            return joint
        return of_fold(params, fold.test) + joint - model.log_prior(params)

    def predictive_of(params: Params, fold: Fold, arrays: Data) -> Predictive:
        if marginal:
            assert model.marginal is not None
            return model.marginal(params, arrays, fold.test)
        terms = model.log_lik(params, arrays)[fold.test]
        pointwise = jnp.where(fold.test >= 0, terms, 0.0)
        return jnp.sum(pointwise), pointwise

    def observed(fold: Fold) -> Float[Array, "slot ..."]:
        return jnp.asarray(outcome, jnp.result_type(float))[rows_of_test(rows, fold.test)]

    def density(params: Params, fold: Fold, y: Float[Array, " slot"]) -> Predictive:
        whole = jnp.asarray(outcome, y.dtype)
        place = jnp.where(fold.test >= 0, fold.test, whole.shape[0])
        changed = whole.at[place].set(y, mode="drop")
        return predictive_of(params, fold, {**arrays, model.outcome.name: changed})

    def replicate(key: Key[Array, ""], params: Params, fold: Fold) -> Float[Array, "slot ..."]:
        if marginal:
            assert model.marginal_predict is not None
            return model.marginal_predict(key, params, arrays, fold.test)
        assert model.predict is not None
        return model.predict(key, params, arrays)[rows_of_test(rows, fold.test)]

    def cdf(
        key: Key[Array, ""], params: Params, fold: Fold, y: Float[Array, "slot ..."]
    ) -> Float[Array, "slot ..."]:
        if marginal:
            assert model.marginal_cdf is not None
            return model.marginal_cdf(key, params, arrays, fold.test, y)
        return cdf_of_test(model, rows, params, arrays, fold.test, y)

    def moments(params: Params, fold: Fold) -> tuple[Array, Array]:
        if marginal:
            assert model.marginal_moments is not None
            return model.marginal_moments(params, arrays, fold.test)
        assert model.moments is not None
        return jax.tree.map(lambda x: x[fold.test], model.moments(params, arrays))

    return Target(
        init=model.init,
        log_density=log_density,
        log_predictive=lambda params, fold: predictive_of(params, fold, arrays),
        outcome=model.outcome,
        constrain=model.constrain,
        observed=observed,
        density=density,
        predict=replicate if (model.marginal_predict if marginal else model.predict) else None,
        cdf=cdf if (model.marginal_cdf if marginal else model.cdf) else None,
        moments=moments if (model.marginal_moments if marginal else model.moments) else None,
        dims=model.dims,
        coords=model.coords,
        reads_test=of_fold is not None,
        calls_back=model.log_joint is not None,
    )


def log_joint(
    model: Model,
    params: Params,
    data: Data,
    some: Bool[Array, " unit"] | Literal[True],
    terms: Float[Array, " unit"] | None = None,
) -> Float[Array, ""]:
    """Log prior plus the log likelihood of some units; `terms` of all, if they are known."""
    if model.log_joint is not None:
        return model.log_joint(params, jnp.asarray(some, float))
    terms = model.log_lik(params, data) if terms is None else terms
    return model.log_prior(params) + jnp.sum(jnp.where(some, terms, 0.0))


def rows_by_unit(data: Data, outcome: str) -> Int[np.ndarray, "unit most"] | None:
    """The rows of each unit, of `pcv.folds.columns.rows_by_unit`; None where each row is a unit."""
    if "unit" not in data or outcome not in data:
        return None
    rows = columns.rows_by_unit(np.asarray(data["unit"]))
    return rows if rows.shape[1] > 1 else None


def rows_of_test(rows: Int[np.ndarray, "unit most"] | None, test: Test) -> Int[Array, "slot ..."]:
    """The rows of the units in `test`, padded with -1."""
    if rows is None:
        return test
    return jnp.where(test[:, None] >= 0, jnp.asarray(rows)[test], -1)


def cdf_of_test(
    model: Model,
    rows: Int[np.ndarray, "unit most"] | None,
    params: Params,
    data: Data,
    test: Test,
    y: Float[Array, "slot ..."],
) -> Float[Array, "slot ..."]:
    """Probability that the outcomes of the units in `test` are at most y, given all parameters.

    Args:
        model: with a `cdf`.
        rows: of `rows_by_unit`.
        params, data: of the model.
        test: indices of the units, padded with -1.
        y: values of their outcomes.
    """
    assert model.cdf is not None
    whole = jnp.asarray(data[model.outcome.name], y.dtype)
    place = rows_of_test(rows, test)
    changed = whole.at[jnp.where(place >= 0, place, whole.size)].set(y, mode="drop")
    return model.cdf(params, data, changed)[place]


def full_data(num_units: int) -> Fold:
    """The full data as a fold: all units in training, none tested."""
    return Fold(jnp.ones(num_units, bool), jnp.zeros(0, int))
