"""NumPyro models, as they are.

A site of a plate becomes a term per element of the plate; latent sites keep their names. Values
that the model computes from all of its data stay as they are in every fold.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from jaxtyping import Array, Key
from numpyro import handlers
from numpyro.infer.initialization import init_to_uniform
from numpyro.infer.util import compute_log_probs, constrain_fn, unconstrain_fn

from pcv.base.errors import PcvError, in_one_line
from pcv.base.programs import devices
from pcv.folds.columns import refuse_twice
from pcv.models.frontends.rows import Layout, common_units, observations
from pcv.models.model import Data, Model, Outcome, Params

Site = dict[str, Any]


class Traced(NamedTuple):
    """The sites of a model that was run once."""

    latent: dict[str, Site]
    observed: dict[str, Site]


@devices.precision("float64")
def from_numpyro(
    model: Callable[..., Any],
    data: Mapping[str, Any] | pd.DataFrame | None = None,
    *,
    units: str | Sequence[str] | None = None,
    columns: Mapping[str, Any] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
) -> Model:
    r"""A NumPyro model, conditioned on its data, for cross-validation.

    The log likelihood has a term for every unit. A unit is an element of the observed site, or,
    with `units`, an element of a plate, whose terms are summed:

    .. math:: \log p(y_u \mid \theta) = \sum_{s \in \mathrm{sites}} \sum_{j \in u}
              \log p(y_{s,j} \mid \theta)

    Handlers work: `reparam`, `scale` (of the scored density too), `condition`, and `mask` of a part
    of a unit, which is then not scored. Values computed from all data (standardised covariates,
    knots of splines, priors scaled by the data) stay as in the full fit in every fold.

    Args:
        model: function of NumPyro primitives, with its observations.
        data: its keyword arguments, by name or as the columns of a table.
        units: plate, or plates, whose elements are the units; None: every element of the observed
            site is one or, with several observed sites, every element of the plates they share.
        columns: more columns of the data, one value per element of the observed site, to make
            folds of by name.
        coords: names of the elements along dimensions of the posterior, as ArviZ takes them.
        dims: names of the dimensions of its variables; sites in plates have these already.

    Raises:
        PcvError: the model does not run; it has discrete latent sites, factors, parameters
            (`numpyro.param`), plates that subsample, missing values (`obs_mask`), or units that are
            masked whole; no site is observed, or its elements are in no plate.

    >>> import numpyro
    >>> def coin(y):
    ...     p = numpyro.sample("p", dist.Beta(2, 2))
    ...     with numpyro.plate("toss", len(y)):
    ...         numpyro.sample("y", dist.Bernoulli(p), obs=y)
    >>> made = from_numpyro(coin, {"y": np.array([0, 1, 1])})
    >>> made.log_lik({"p": jnp.zeros(())}, {}).shape
    (3,)
    """
    name = getattr(model, "__name__", type(model).__name__)
    where = f"NumPyro model '{name}'"
    items = [] if data is None else [(str(key), x) for key, x in data.items()]
    refuse_twice([key for key, _ in items], where)
    data = dict(items)
    given = {key: _as_array(x) for key, x in data.items()}
    sites, in_jax = _run(model, given, where)
    found = _traced(sites, where)
    layouts = {site: _layout(x, where) for site, x in found.observed.items()}
    chosen = common_units(layouts, [units] if isinstance(units, str) else units, where)
    _refuse_masked(found.observed, layouts, chosen, where)
    observed = {site: np.asarray(x["value"]) for site, x in found.observed.items()}
    outcome = "_".join(observed)
    rows = observations(outcome, observed, layouts, chosen, data, columns or {}, where)
    single = next(iter(observed)) if len(observed) == 1 else None
    argument = _argument(given, observed[single]) if single else None
    discrete = {bool(x["fn"].support.is_discrete) for x in found.observed.values()}

    # The outcome's column holds the observed values, whatever an argument of its name does.
    along = {key for key in given if key in rows.columns and key not in (argument, outcome)}

    def arguments(data: Data) -> dict[str, Any]:
        """The model's arguments, those that the data have from there."""
        anew = {key: data[key] for key in along if key in data}
        if argument is not None and outcome in data:
            anew[argument] = data[outcome]
        kwargs = dict(given)
        for key, x in anew.items():
            shape = given[key].shape if np.size(x) == given[key].size else np.shape(x)
            xp = jnp if isinstance(x, jax.core.Tracer) else np
            kwargs[key] = xp.reshape(xp.asarray(x, given[key].dtype), shape)
        return _in_jax(kwargs) if in_jax else kwargs

    def init(key: Key[Array, ""]) -> Params:
        kwargs = arguments({})
        start = handlers.substitute(handlers.seed(model, key), substitute_fn=_where_not_drawn)
        sites = handlers.trace(start).get_trace(**kwargs)
        values = {site: sites[site]["value"] for site in found.latent}
        return unconstrain_fn(model, (), kwargs, values)

    def unconstrain(variables: Mapping[str, Array]) -> Params:
        values = {site: variables[site] for site in found.latent}
        params: Params = unconstrain_fn(model, (), arguments({}), values)
        return params

    def log_prior(params: Params) -> Array:
        kwargs = arguments({})
        values = constrain_fn(model, (), kwargs, params)
        terms, sites = compute_log_probs(model, (), kwargs, values)
        total = jnp.zeros(())
        for site in found.latent:
            to = dist.biject_to(sites[site]["fn"].support)
            jacobian = to.log_abs_det_jacobian(params[site], values[site])
            total = total + terms[site] + jnp.sum(jacobian)
        return total

    def log_lik(params: Params, data: Data) -> Array:
        kwargs = arguments(data)
        values = constrain_fn(model, (), kwargs, params)
        with numpyro.validation_enabled(False):  # `_run` has looked at the observations
            terms, sites = compute_log_probs(model, (), kwargs, values, sum_log_prob=False)
        if single is not None and argument is None and outcome in data:
            fn, scale = sites[single]["fn"], sites[single]["scale"]
            y = jnp.reshape(data[outcome], observed[single].shape).astype(observed[single].dtype)
            terms[single] = fn.log_prob(y) * (1.0 if scale is None else scale)
        of_sites = [layouts[site].by_unit(terms[site], chosen) for site in observed]
        return jnp.sum(jnp.stack(of_sites), axis=0)

    def outcome_of(params: Params, data: Data) -> dist.Distribution:
        kwargs = arguments(data)
        _, sites = compute_log_probs(model, (), kwargs, constrain_fn(model, (), kwargs, params))
        return sites[single]["fn"]

    def predict(key: Key[Array, ""], params: Params, data: Data) -> Array:
        fn, shape = outcome_of(params, data), next(iter(observed.values())).shape
        each = fn.expand(shape[: len(shape) - fn.event_dim])
        return jnp.ravel(each.sample(key)).astype(float)

    def moments(params: Params, data: Data) -> tuple[Array, Array]:
        fn, shape = outcome_of(params, data), next(iter(observed.values())).shape
        mean, variance = (jnp.broadcast_to(x, shape) for x in (fn.mean, fn.variance))
        return jnp.ravel(mean), jnp.ravel(variance)

    by_element = single is not None and not rows.units
    made = Model(
        init,
        log_prior,
        log_lik,
        lambda params: constrain_fn(model, (), arguments({}), params, return_deterministic=True),
        Outcome(outcome, discrete=discrete.pop() if len(discrete) == 1 else None),
        data=rows,
        dims=_dims(found.latent) | dict(dims or {}),
        coords=coords or {},
        notes=_notes(found),
        unconstrain=unconstrain,
    )
    if not by_element:
        return made
    replicates = _works(lambda key: predict(key, init(key), {}))
    averages = _works(lambda key: moments(init(key), {}))
    return made._replace(
        predict=predict if replicates else None, moments=moments if averages else None
    )


def _as_array(x: Any) -> Any:
    """Tables' columns and lists of numbers as arrays, arrays of one number as that, all else as it
    is."""
    if isinstance(x, str | bytes | bool | int | float | Mapping) or x is None or callable(x):
        return x
    array = np.asarray(x)
    if array.dtype.kind not in "biuf":
        return x
    return array if array.ndim else array.item()


def _in_jax(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays as JAX's, in the precision of the moment."""
    with jax.ensure_compile_time_eval():
        return {
            name: jnp.asarray(x) if isinstance(x, np.ndarray) and x.dtype.kind in "biuf" else x
            for name, x in arguments.items()
        }


def _sites(
    model: Callable[..., Any], key: Key[Array, ""] | int, kwargs: Mapping[str, Any]
) -> tuple[dict[str, Site], dict[str, Any]]:
    """The sites of one run of a model, and the values of all that is sampled."""
    start = handlers.substitute(handlers.seed(model, key), substitute_fn=_where_not_drawn)
    sites = handlers.trace(start).get_trace(**kwargs)
    return sites, {name: x["value"] for name, x in sites.items() if x["type"] == "sample"}


def _run(
    model: Callable[..., Any], given: Mapping[str, Any], where: str
) -> tuple[dict[str, Site], bool]:
    """The sites of a model, and whether its arrays must be JAX's, to be indexed by what is drawn;
    of NumPy's, sizes may be computed."""
    errors = []
    for in_jax in (False, True):
        kwargs = _in_jax(given) if in_jax else given
        try:
            sites, _ = _sites(model, 0, kwargs)
            _refuse_text(sites, where)
            jax.eval_shape(lambda key: _sites(model, key, kwargs)[1], jax.random.key(0))  # noqa: B023
        except PcvError:
            raise
        except Exception as error:  # whatever a model of the user does
            errors.append(error)
        else:
            return sites, in_jax
    names = ", ".join(given) or "no arguments"
    first, last = errors
    said = in_one_line(last if isinstance(first, jax.errors.JAXTypeError) else first)
    hint = next((f"; {name}{wrong}" for name, x in given.items() if (wrong := _unusable(x))), "")
    raise PcvError(f"{where}: called with {names} it fails: {said}{hint}") from first


def _refuse_text(sites: Mapping[str, Site], where: str) -> None:
    for name, site in sites.items():
        if site["type"] == "sample" and np.asarray(site["value"]).dtype.kind in "OSU":
            shown = np.ravel(np.asarray(site["value"]))[0]
            if not isinstance(shown, str | bytes):
                raise PcvError(
                    f"{where}: site '{name}' is of dtype object; make it numbers, as by "
                    "np.asarray(x, float)"
                )
            raise PcvError(
                f"{where}: site '{name}' holds {str(shown)!r}, which is no number; recode it, for "
                "example as 0 and 1"
            )


def _unusable(x: Any) -> str:
    """Why a model may fail with an argument, if that is seen at once."""
    array = np.asarray(x)
    if array.dtype.kind in "OSU" and array.size and isinstance(np.ravel(array)[0], str):
        return f" holds text ({str(np.ravel(array)[0])!r}): recode it as numbers"
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return ""
    place = np.argwhere(~np.isfinite(array))[0].tolist()
    return f"{place} is {array[tuple(place)]}: fill it in, or drop its observation"


def _traced(sites: Mapping[str, Site], where: str) -> Traced:
    """Which sites are latent and which observed, if folds can be made of them."""
    sampled = {name: site for name, site in sites.items() if site["type"] == "sample"}
    latent = {name: site for name, site in sampled.items() if not site["is_observed"]}
    observed = {name: site for name, site in sampled.items() if site["is_observed"]}
    for name, site in sites.items():
        if site["type"] == "param":
            raise PcvError(
                f"{where}: '{name}' is a numpyro.param, which has no prior; make it a sample site"
            )
        if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0]):
            raise PcvError(
                f"{where}: plate '{name}' subsamples {site['args'][1]} of {site['args'][0]} "
                "elements; cross-validation needs them all: leave subsample_size out"
            )
    for name, site in latent.items():
        missing = name.removesuffix("_unobserved")
        if f"{missing}_observed" in observed:
            raise PcvError(
                f"{where}: '{missing}' has missing values (obs_mask); drop these observations"
            )
        if site["fn"].support.is_discrete:
            raise PcvError(
                f"{where}: latent site '{name}' is discrete, which HMC cannot draw; sum it out, "
                "for example by numpyro.distributions.MixtureSameFamily"
            )
    for name, site in observed.items():
        if isinstance(site["fn"], dist.Unit):
            raise PcvError(
                f"{where}: numpyro.factor '{name}' cannot be told apart by units: if it is part of"
                " the likelihood, write it as an observed site of a distribution; if of the prior,"
                " as a latent one"
            )
    for name, site in observed.items():
        missing_at = np.argwhere(np.isnan(np.asarray(site["value"], float)))
        if missing_at.size and _mask(site["fn"]) is True:
            place = missing_at[0].tolist()
            raise PcvError(
                f"{where}: observed site '{name}' has missing values, {len(missing_at)} in all, "
                f"the first is {name}{place}; drop these observations"
            )
    if not observed:
        raise PcvError(f"{where}: no site is observed; give one obs=..., with its data")
    if not latent:
        raise PcvError(f"{where}: no latent site; there is nothing to draw")
    return Traced(latent, observed)


def _where_not_drawn(site: Site) -> Any:
    """A start for latent sites that cannot be drawn from their prior."""
    if site["type"] != "sample" or site["is_observed"]:
        return None
    try:
        jax.eval_shape(site["fn"].sample, jax.random.key(0))
    except NotImplementedError:
        return init_to_uniform(site)
    return None


def _notes(found: Traced) -> list[str]:
    """What readers of the scores must know."""
    notes = []
    for name, site in found.observed.items():
        by = np.unique(1.0 if site["scale"] is None else np.asarray(site["scale"]))
        if (by != 1).any():
            times = f"times {by[0]:g}" if by.size == 1 else "times factors of its own"
            notes.append(
                f"the scores of '{name}' are of its log density {times} (handlers.scale), not of "
                "its log density"
            )
    improper = [f"'{name}'" for name, site in found.latent.items() if _improper(site["fn"])]
    if improper:
        notes.append(
            f"the prior of {', '.join(improper)} is improper (ImproperUniform): the posterior of a "
            "fold may be so too, where it leaves out what tells of it"
        )
    return notes


def _improper(fn: dist.Distribution) -> bool:
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return isinstance(fn, dist.ImproperUniform)


def _layout(site: Site, where: str) -> Layout:
    """The dimensions of an observed site's elements, by the names of their plates."""
    value, event = np.shape(site["value"]), len(site["fn"].event_shape)
    expected = site["fn"].shape()
    try:
        fits = np.broadcast_shapes(expected, value) == value
    except ValueError:
        fits = False
    if not fits:
        raise PcvError(
            f"{where}: observed site '{site['name']}' has values of shape {value}, but its "
            f"distribution and plates have shape {expected}"
        )
    batch = value[: len(value) - event]
    if not batch:
        raise PcvError(
            f"{where}: observed site '{site['name']}' has shape {value} but is one element as a "
            "whole; declare its observations by a plate, or without to_event; outcomes that are "
            "jointly normal, as in a Gaussian process, are written with pcv.normal_target"
        )
    plates = {frame.dim: frame.name for frame in site["cond_indep_stack"]}
    dims = [
        plates.get(axis - len(batch), f"{site['name']}_dim_{axis}") for axis in range(len(batch))
    ]
    inner = [f"{site['name']}_dim_{axis}" for axis in range(len(batch), len(value))]
    return Layout(tuple(dims), tuple(inner), value)


def _dims(latent: Mapping[str, Site]) -> dict[str, list[str]]:
    """The dimensions of latent sites, by the names of their plates."""
    found: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    for name, site in latent.items():
        shape, event = np.shape(site["value"]), len(site["fn"].event_shape)
        plates = {frame.dim + len(shape) - event: frame.name for frame in site["cond_indep_stack"]}
        dims = [f"{name}_dim_{axis}" for axis in range(len(shape))]
        for axis, plate in plates.items():
            if plate not in latent and sizes.setdefault(plate, shape[axis]) == shape[axis]:
                dims[axis] = plate
        if dims:
            found[name] = dims
    return found


def _refuse_masked(
    observed: Mapping[str, Site], layouts: Mapping[str, Layout], units: tuple[str, ...], where: str
) -> None:
    """Units of which handlers.mask leaves nothing: their scores would be 0."""
    present = []
    for name, site in observed.items():
        shape = layouts[name].shape[: len(layouts[name].dims)]
        left = jnp.broadcast_to(_mask(site["fn"]), shape)
        present.append(layouts[name].by_unit(left.astype(float), units))
    masked = np.flatnonzero(np.sum(present, axis=0) == 0)
    if masked.size:
        raise PcvError(
            f"{where}: handlers.mask leaves nothing of {masked.size} of {present[0].size} units "
            f"(the first is unit {masked[0] + 1}), which cannot be scored; drop their observations"
        )


def _mask(fn: dist.Distribution) -> Any:
    if isinstance(fn, dist.MaskedDistribution):
        return jnp.logical_and(fn._mask, _mask(fn.base_dist))
    return _mask(fn.base_dist) if isinstance(fn, dist.ExpandedDistribution) else True


def _argument(kwargs: Mapping[str, Any], observed: np.ndarray) -> str | None:
    """The argument of the model that holds the observed values."""
    for name, x in kwargs.items():
        if isinstance(x, np.ndarray) and x.shape == observed.shape and (x == observed).all():
            return name
    return None


def _works(function: Callable[[Key[Array, ""]], Any]) -> bool:
    """Does what NumPyro may have no code for run?"""
    try:
        jax.eval_shape(function, jax.random.key(0))
    except (NotImplementedError, TypeError, AttributeError):
        return False
    return True
