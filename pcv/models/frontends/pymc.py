"""PyMC models, compiled to JAX.

Parameters are named after the value variables (``sigma_log__``), variables of the posterior after
the model's (``sigma``), deterministics included.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Key

from pcv.base.errors import PcvError, in_one_line

try:
    import pymc as pm
except ModuleNotFoundError as error:
    raise PcvError(
        "models of PyMC and Bambi need these installed: install pcv with its extra, pcv-bayes[pymc]"
    ) from error
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.initial_point import make_initial_point_fn
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Constant
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.tensor.random.type import RandomType

from pcv.models.frequencies import with_frequencies
from pcv.models.frontends.factors import check_factors, holds_outcome
from pcv.models.frontends.graphs import compiled, content, replicates, unconstrainer
from pcv.models.frontends.partly import name_of, partly
from pcv.models.frontends.rows import Layout, common_units, observations
from pcv.models.missing import without_missing
from pcv.models.model import Data, Model, Outcome, Params

PRIOR_DRAWS, FEWEST, MOST_TRIES = 200, 20, 2000
"""prior draws that start chains of the full-data fit: number wanted, fewest accepted, and most
attempts"""
NEAR_ZERO = 2.0
"""how far from zero, unconstrained, chains may start if all else fails"""


def from_pymc(
    model: Any,
    *,
    units: str | Sequence[str] | None = None,
    columns: Mapping[str, Any] | None = None,
    weights: Any = None,
) -> Model:
    r"""A PyMC model, conditioned on its data, for cross-validation.

    The log likelihood has a term for every unit. A unit is an element of the observed variable,
    or, with `units`, an element of one of its dims, whose terms are summed:

    .. math:: \log p(y_u \mid \theta) = \sum_{v \in \mathrm{observed}} \sum_{j \in u}
              \log p(y_{v,j} \mid \theta)

    Missing outcomes, which PyMC imputes, are parameters, and are in no test set. What the model
    computes from all data (standardised covariates, scaled priors) is the same in every fold as in
    the full-data fit.

    Args:
        model: `pm.Model`, with its observations.
        units: dim, or dims, whose elements are the units; None: the elements of the observed
            variable or, with several observed variables, of the dims they share.
        columns: further columns of the data, one value per element of the observed variable, that
            folds can name.
        weights: as for `from_numpyro`: a column's name, or a whole number for each row.

    Raises:
        PcvError: it is not a PyMC model; it has potentials that depend on the outcome, minibatched
            data, discrete free variables, or distributions without a JAX implementation; or nothing
            is observed.
    """
    if not isinstance(model, pm.Model):
        raise PcvError(f"from_pymc: {type(model).__name__} is not a PyMC model; give a pm.Model")
    where = f"PyMC model '{model.name}'" if model.name else "PyMC model"
    _refuse(model, where)
    seen = {name_of(model, rv): partly(model, rv, where) for rv in model.observed_RVs}
    values = {name_of(model, rv): model.rvs_to_values[rv] for rv in model.observed_RVs}
    observed = {name: x.values for name, x in seen.items()}
    layouts = {
        name: _layout(model, name, rv.owner.op.ndim_supp, x.values, where)
        for rv, (name, x) in zip(model.observed_RVs, seen.items())
    }
    chosen = common_units(layouts, units, where)
    outcome = "_".join(observed)
    known = {x.name: x.get_value() for x in model.data_vars if x.name not in observed}
    rows = observations(outcome, observed, layouts, chosen, known, columns or {}, where)
    single = next(iter(observed)) if len(observed) == 1 else None
    parameters = list(model.value_vars)
    names = [value.name for value in parameters]
    inputs = {value: value.type(f"{name}_given") for name, value in values.items()}
    terms = graph_replace(_terms(model, observed, where), inputs, strict=False)
    starts = _starts(model)
    num_starts = len(starts[names[0]])
    example = [np.asarray(starts[name][0], float) for name in names]
    if model.potentials:
        _refuse_potentials_of_outcome(model, observed, where)
    prior = compiled(parameters, [model.logp(vars=[*model.free_RVs, *model.potentials])], where)
    likelihood = compiled([*parameters, *inputs.values()], terms, where)
    shown = [rv.name for rv in model.unobserved_RVs]
    shown_of = model.replace_rvs_by_values(model.unobserved_RVs)
    posterior = compiled(parameters, shown_of, where)

    def init(key: Key[Array, ""]) -> Params:
        draw = jax.random.randint(key, (), 0, num_starts)
        return {name: jnp.asarray(starts[name], float)[draw] for name in names}

    def at(params: Params) -> list[Array]:
        return [params[name] for name in names]

    def log_lik(params: Params, data: Data) -> Array:
        given: dict[str, Any] = dict(observed)
        if single is not None and outcome in data:
            given[single] = jnp.reshape(data[outcome], observed[single].shape)
        given_values = [seen[name].given(x) for name, x in given.items()]
        found = zip(seen.items(), likelihood(*at(params), *given_values))
        of_units = [layouts[name].by_unit(x.terms(terms), chosen) for (name, x), terms in found]
        return jnp.sum(jnp.stack(of_units), axis=0)

    def constrain(params: Params) -> dict[str, Array]:
        return {name: jnp.asarray(x) for name, x in zip(shown, posterior(*at(params)))}

    made = jax.eval_shape(lambda key: constrain(init(key)), jax.random.key(0))
    shapes = {name: x.shape for name, x in made.items()}
    discrete = all(rv.dtype.startswith("int") for rv in model.observed_RVs)
    drawn = None if single is None else replicates(model, at, example)
    whole = Model(
        init,
        lambda params: jnp.asarray(prior(*at(params))[0]),
        log_lik,
        constrain,
        Outcome(outcome, discrete=discrete, ordered=_ordered(model) if discrete else None),
        predict=drawn and (lambda *args: seen[str(single)].rows(drawn(*args))),
        data=rows._replace(fixed=True),
        dims=_dims(model, shapes),
        coords={name: _labels(x) for name, x in model.coords.items() if x is not None},
        unconstrain=unconstrainer(model),
        notes=_notes_on(model),
        factors=[x.name for x in model.potentials],
    )
    by_unit = [
        layouts[name].by_unit(jnp.asarray(x.there, float), chosen) for name, x in seen.items()
    ]
    by_row = [layouts[name].by_row(x.there) for name, x in seen.items()]
    observed_units = np.asarray(sum(by_unit)) > 0
    there = without_missing(whole, np.concatenate(by_row), observed_units, where)
    return with_frequencies(there, weights, where)


def _refuse_potentials_of_outcome(
    model: pm.Model, observed: Mapping[str, np.ndarray], where: str
) -> None:
    """Refuse potentials that depend on the outcome, or on constants that hold its values."""
    names = [x.name for x in model.potentials]
    graphs = model.logp(vars=model.potentials, sum=False)
    held = {
        str(place): x
        for place, x in enumerate(graph_inputs(graphs))
        if getattr(x.type, "ndim", 0)
        and (isinstance(x, Constant) or hasattr(x, "get_value"))
        and any(holds_outcome(content(x), y) for y in observed.values())
    }
    if not held:
        return
    inputs = {x: x.type() for x in held.values()}
    replaced = graph_replace(graphs, inputs, strict=False)
    compute = compiled([*model.value_vars, *inputs.values()], replaced, where)
    point = model.initial_point(0)
    holding = {key: np.asarray(content(x)) for key, x in held.items()}

    def potentials_of(others: Mapping[str, np.ndarray]) -> dict[str, Array]:
        arrays = {**holding, **others}
        given = [point[value.name] for value in model.value_vars]
        return dict(zip(names, compute(*given, *(arrays[key] for key in held))))

    check_factors(potentials_of, holding, lambda name: f"{where}: pm.Potential '{name}'")


def _notes_on(model: pm.Model) -> list[str]:
    """Caveats for readers of the scores: a density of one's own may be weighted."""
    given = [
        f"'{rv.name}'"
        for rv in model.observed_RVs
        if isinstance(op := rv.owner.op, CustomDistRV)
        or (isinstance(op, CustomSymbolicDistRV) and not op.inline_logprob)
    ]
    if not given:
        return []
    return [
        f"scores of {', '.join(given)} are of the log density that a CustomDist gives, as it is: "
        "any weights in it are part of the score"
    ]


def _refuse(model: pm.Model, where: str) -> None:
    for rv in model.free_RVs:
        if rv.dtype.startswith(("int", "bool")):
            name = rv.name.removesuffix("_unobserved")
            if name != rv.name and f"{name}_observed" in model.named_vars:
                raise PcvError(
                    f"{where}: '{name}' is discrete, so that its missing values cannot be sampled; "
                    "drop these observations"
                )
            raise PcvError(
                f"{where}: free variable '{rv.name}' is discrete, which HMC cannot sample; "
                "marginalise it out, for example with pm.Mixture"
            )
    for rv in model.observed_RVs:
        value = model.rvs_to_values[rv]
        drawn = not hasattr(value, "get_value") and any(
            isinstance(x.type, RandomType) for x in ancestors([value])
        )
        if drawn or isinstance(rv.owner.op, MinibatchRandomVariable):
            raise PcvError(
                f"{where}: '{rv.name}' is a minibatch; cross-validation needs all the data: "
                "observe them in full"
            )
    if not model.observed_RVs:
        raise PcvError(f"{where}: nothing is observed; give a variable observed=...")
    if not model.free_RVs:
        raise PcvError(f"{where}: it has no free variables; there is nothing to sample")


def _terms(model: pm.Model, observed: Mapping[str, np.ndarray], where: str) -> list[Any]:
    """The log likelihood of every observed variable, element by element."""
    try:
        found: list[Any] = model.logp(vars=model.observed_RVs, sum=False)
    except ValueError as error:
        shapes = ", ".join(f"'{name}' {x.shape}" for name, x in observed.items())
        raise PcvError(
            f"{where}: PyMC finds no log likelihood; do the observed values ({shapes}) have the "
            f"shape of their distribution? ({in_one_line(error)})"
        ) from error
    return found


def _layout(model: pm.Model, variable: str, inner: int, observed: np.ndarray, where: str) -> Layout:
    size = observed.ndim - inner
    if not size:
        raise PcvError(
            f"{where}: '{variable}' is a single observation, of shape {observed.shape}; its "
            "likelihood does not factorise into units; for jointly normal outcomes, as in a "
            "Gaussian process or an autoregression, use pcv.normal_target, for others pcv.Target"
        )
    dims = model.named_vars_to_dims.get(variable) or [None] * observed.ndim
    named = [name or f"{variable}_dim_{axis}" for axis, name in enumerate(dims)]
    coords = {name: _labels(model.coords.get(name)) for name in named}
    labels = {
        name: coords[name]
        for name, length in zip(named, observed.shape)
        if len(np.unique(coords[name])) == length == len(coords[name])
    }
    return Layout(tuple(named[:size]), tuple(named[size:]), observed.shape, labels)


def _dims(model: pm.Model, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, list[str]]:
    """Dimensions of the posterior's variables, where the model names them.

    PyMC does not check a deterministic's dims against its shape, and Bambi's may not fit.
    """
    taken = {*model.named_vars, "chain", "draw"}
    lengths = {name: len(x) for name, x in model.coords.items() if x is not None}
    found = {}
    for variable, shape in shapes.items():
        dims = model.named_vars_to_dims.get(variable, ())
        if shape and len(set(dims)) == len(shape):
            fits = [
                name is not None and name not in taken and lengths.setdefault(name, size) == size
                for name, size in zip(dims, shape)
            ]
            found[variable] = [
                name if fit else f"{variable}_dim_{axis}"
                for axis, (name, fit) in enumerate(zip(dims, fits))
            ]
    return found


def _labels(coords: Sequence[Any] | None) -> np.ndarray:
    """Names of a dimension's elements: numbers and dates unchanged, all else as text."""
    index = pd.Index([] if coords is None else list(coords), tupleize_cols=False)
    if index.dtype.kind in "iuM" or (index.dtype.kind == "f" and np.isfinite(index).all()):
        return index.to_numpy()
    return np.array([str(x) for x in index], np.str_)


def _starts(model: pm.Model) -> dict[str, np.ndarray]:
    """Prior draws of all value variables; where the prior is improper, or too few draws can be
    transformed, points near its centre, or near zero.

    PyMC draws without regard to transforms: for an ordered variable, only draws that happen to be
    in order are from its prior.
    """
    try:
        found = _finite(make_initial_point_fn(model=model, default_strategy="prior"), MOST_TRIES)
    except NotImplementedError:  # Flat priors
        found = []
    if len(found) < FEWEST:
        near = make_initial_point_fn(model=model, jitter_rvs=set(model.free_RVs))
        found = _finite(near, PRIOR_DRAWS)
    if not found:
        shapes, rng = {name: x.shape for name, x in near(0).items()}, np.random.default_rng(0)
        found = [
            {name: rng.uniform(-NEAR_ZERO, NEAR_ZERO, shape) for name, shape in shapes.items()}
            for _ in range(PRIOR_DRAWS)
        ]
    return {name: np.stack([x[name] for x in found]) for name in found[0]}


def _finite(
    draw: Callable[[int], Mapping[str, np.ndarray]], tries: int
) -> list[Mapping[str, np.ndarray]]:
    draws = (draw(seed) for seed in range(tries))
    sound = (x for x in draws if all(np.isfinite(value).all() for value in x.values()))
    return list(islice(sound, PRIOR_DRAWS))


def _ordered(model: pm.Model) -> bool | None:
    """Whether larger values of a discrete outcome rank higher; None: unknown, as of `Categorical`,
    which `OrderedLogistic` is too."""
    operations = {rv.owner.op.name for rv in model.observed_RVs}
    return None if "categorical" in operations else True
