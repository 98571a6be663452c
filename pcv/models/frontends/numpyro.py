"""NumPyro models.

Observed sites have a log likelihood term per element of their plates; latent sites keep their
names. Values that the model computes from all of its data are the same in every fold.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
from jaxtyping import Array, Bool, Int, Key
from numpyro.infer.util import compute_log_probs, constrain_fn, unconstrain_fn

from pcv.base import devices
from pcv.base.errors import PcvError
from pcv.folds.columns import refuse_twice
from pcv.models.frequencies import from_repeated_rows, with_frequencies
from pcv.models.frontends.factors import check_factors, holds_outcome
from pcv.models.frontends.rows import common_units, observations
from pcv.models.frontends.sites import (
    Sites,
    as_jax,
    dims_of,
    imputed,
    layout_of,
    missing_from,
    notes_on,
    plain_names,
    run,
    sites_of,
)
from pcv.models.missing import without_missing
from pcv.models.model import Data, Model, Outcome, Params
from pcv.models.observations import append_rows

MIN_SERIES = 8
"""values of an outcome that are looked for at the end of a longer argument"""


@devices.precision("float64")
def from_numpyro(
    model: Callable[..., Any],
    data: Mapping[str, Any] | pd.DataFrame | None = None,
    *,
    units: str | Sequence[str] | None = None,
    columns: Mapping[str, Any] | None = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    weights: Any = None,
) -> Model:
    r"""A NumPyro model, conditioned on its data, for cross-validation.

    The log likelihood has a term for every unit. A unit is an element of the observed site, or,
    with `units`, an element of a plate, whose terms are summed:

    .. math:: \log p(y_u \mid \theta) = \sum_{s \in \mathrm{sites}} \sum_{j \in u}
              \log p(y_{s,j} \mid \theta)

    Handlers work: `reparam`, `scale` (of the scored density too), and `condition`. Outcomes that
    are NaN, or hidden by `mask`, are left out of every training and test set; with `obs_mask` they
    are parameters, and are not scored either. Values computed from all data (standardised
    covariates, knots of splines, priors scaled by the data) are the same in every fold as in the
    full-data fit.

    Args:
        model: function of NumPyro primitives, with its observations.
        data: its keyword arguments, by name or as the columns of a table. Numeric ones are copied.
        units: plate, or plates, whose elements are the units; None: the elements of the observed
            site or, with several observed sites, of the plates they share.
        columns: further columns of the data, one value per element of the observed site, that
            folds can name.
        coords: names of the elements along dimensions of the posterior, as ArviZ takes them.
        dims: dimension names of its variables; plates already name theirs.
        weights: how many alike each row stands for, a column's name or a whole number for each: all
            is as if the row were repeated so often.

    Raises:
        PcvError: the model does not run; it has discrete latent sites, factors that depend on the
            outcome, parameters (`numpyro.param`), or plates that subsample; no site is observed, or
            its elements are in no plate.

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
    found = sites_of(model, given, where)
    if found.factors:
        _refuse_factors_of_outcome(model, given, found, where)
    plain = plain_names(found)
    layouts = {site: layout_of(x, plain[site], where) for site, x in found.observed.items()}
    chosen = common_units(layouts, units, where)
    observed = {site: np.array(x["value"]) for site, x in found.observed.items()}
    missing = {
        site: missing_from(x, layouts[site].shape[: len(layouts[site].dims)], where)
        for site, x in found.observed.items()
    }
    outcome = "_".join(plain.values())
    rows = observations(outcome, observed, layouts, chosen, data, columns or {}, where)
    first, shape = next((site, x.shape) for site, x in observed.items())
    single = first if len(observed) == 1 else None
    argument, before = _argument(given, observed[single]) if single else (None, 0)
    discrete = {bool(x["fn"].support.is_discrete) for x in found.observed.values()}
    is_discrete = discrete.pop() if len(discrete) == 1 else None

    # The outcome's column holds the observed values, even if an argument of that name does not.
    along = {key for key in given if key in rows.columns and key not in (argument, outcome)}

    def arguments(data: Data) -> dict[str, Any]:
        """The model's arguments, taken from the data where these have them."""
        anew = {key: data[key] for key in along if key in data}
        if argument is not None and outcome in data:
            anew[argument] = data[outcome]
            if before:
                xp = jnp if isinstance(data[outcome], jax.core.Tracer) else np
                anew[argument] = xp.concatenate([given[argument][:before], data[outcome]])
        kwargs = dict(given)
        for key, x in anew.items():
            shape = given[key].shape if np.size(x) == given[key].size else np.shape(x)
            xp = jnp if isinstance(x, jax.core.Tracer) else np
            whole = key != argument or is_discrete is not False  # else drawn, too, as fractions
            kind = given[key].dtype if whole else np.result_type(given[key].dtype, x.dtype)
            kwargs[key] = xp.reshape(xp.asarray(x, kind), shape)
        return as_jax(kwargs) if found.in_jax else kwargs

    lost = imputed(found)
    start = {site: x["value"] for site, x in found.latent.items()}
    filling = unconstrain_fn(model, (), arguments({}), start) if lost else {}

    def parameters(params: Params) -> Params:
        """Without elements of imputed outcomes that are observed, which no density depends on."""
        return {site: x[lost[site]] if site in lost else x for site, x in params.items()}

    def of_sites(params: Params) -> Params:
        return {
            site: filling[site].at[lost[site]].set(x) if site in lost else x
            for site, x in params.items()
        }

    def init(key: Key[Array, ""]) -> Params:
        kwargs = arguments({})
        sites = run(model, key, kwargs)
        values = {site: sites[site]["value"] for site in found.latent}
        return parameters(unconstrain_fn(model, (), kwargs, values))

    def unconstrain(variables: Mapping[str, Array]) -> Params:
        values = {site: variables[site] for site in found.latent}
        return parameters(unconstrain_fn(model, (), arguments({}), values))

    def constrain(params: Params) -> dict[str, Array]:
        args = (model, (), arguments({}), of_sites(params))
        variables: dict[str, Array] = constrain_fn(*args, return_deterministic=True)
        return variables

    def log_prior(params: Params) -> Array:
        kwargs, params = arguments({}), of_sites(params)
        values = constrain_fn(model, (), kwargs, params)
        with numpyro.validation_enabled(False):
            terms, sites = compute_log_probs(model, (), kwargs, values)
        total = jnp.zeros(())
        for site in found.factors:
            total = total + terms[site]
        for site in found.latent:
            to = dist.biject_to(sites[site]["fn"].support)
            jacobian = to.log_abs_det_jacobian(params[site], values[site])
            jacobian = jacobian[lost[site]] if site in lost else jacobian
            total = total + terms[site] + jnp.sum(jacobian)
        return total

    def log_lik(params: Params, data: Data) -> Array:
        kwargs = arguments(data)
        values = constrain_fn(model, (), kwargs, of_sites(params))
        # Where support is fixed, `sites_of` has checked the observations.
        with numpyro.validation_enabled(found.moving):
            terms, sites = compute_log_probs(model, (), kwargs, values, sum_log_prob=False)
        value_of = {site: jnp.asarray(sites[site]["value"]) for site in observed}
        if single is not None and argument is None and outcome in data:
            if _differs(sites[single]["value"], observed[single]):
                raise PcvError(
                    f"{where}: what is observed at '{single}' has changed since pcv.from_numpyro; "
                    "call it again"
                )
            y = jnp.asarray(data[outcome], observed[single].dtype)
            value_of[single] = jnp.reshape(y, observed[single].shape)
            terms[single] = _terms(sites[single], value_of[single], missing[single])
        for site, y in value_of.items():
            if missing[site].any():
                terms[site] = _terms(sites[site], y, missing[site])
        of_units = [layouts[site].by_unit(terms[site], chosen) for site in observed]
        return jnp.sum(jnp.stack(of_units), axis=0)

    def outcome_of(params: Params, data: Data) -> dist.Distribution:
        kwargs, params = arguments(data), of_sites(params)
        with numpyro.validation_enabled(False):  # of outcomes that are missing
            _, sites = compute_log_probs(model, (), kwargs, constrain_fn(model, (), kwargs, params))
        return sites[single]["fn"]

    def predict(key: Key[Array, ""], params: Params, data: Data) -> Array:
        fn = outcome_of(params, data)
        each = fn.expand(shape[: len(shape) - fn.event_dim])
        return jnp.ravel(each.sample(key)).astype(float)

    def moments(params: Params, data: Data) -> tuple[Array, Array]:
        fn = outcome_of(params, data)
        mean, variance = (jnp.broadcast_to(x, shape) for x in (fn.mean, fn.variance))
        return jnp.ravel(mean), jnp.ravel(variance)

    def cdf(params: Params, data: Data, y: Array) -> Array:
        fn = outcome_of(params, data)
        return jnp.ravel(jnp.broadcast_to(fn.cdf(jnp.reshape(y, shape)), shape))

    def append(new_data: Any) -> Model:
        if argument is None or before:
            raise PcvError(
                f"{where}: new data need its outcome to be an argument; give the model's function "
                "what it observes, and nothing before it, by data=..."
            )
        whole = append_rows(given, new_data, shape[0], argument)
        appended: Model = from_numpyro(model, whole, units=units, dims=dims)
        return appended

    by_element = single is not None and not rows.units
    replicates = single is not None and _works(lambda key: predict(key, init(key), {}))
    integrals = replicates and _works(lambda key: cdf(init(key), {}, jnp.zeros(shape)))
    ordered, categories = _categories(found.observed, is_discrete)
    averages = by_element and not categories and _works(lambda key: moments(init(key), {}))
    whole = Model(
        init,
        log_prior,
        log_lik,
        constrain,
        Outcome(outcome, discrete=is_discrete, ordered=ordered, categories=categories),
        predict=predict if replicates else None,
        cdf=cdf if integrals else None,
        moments=moments if averages else None,
        data=rows,
        dims=dims_of(found.latent) | dict(dims or {}),
        coords=coords or {},
        notes=notes_on(found),
        unconstrain=unconstrain,
        append=append,
        factors=tuple(found.factors),
    )
    by_unit = {
        site: layouts[site].by_unit(jnp.asarray(~x, float), chosen) for site, x in missing.items()
    }
    by_row = [layouts[site].by_row(~x) for site, x in missing.items()]
    observed_units = np.asarray(sum(by_unit.values())) > 0
    there = without_missing(whole, np.concatenate(by_row), observed_units, where)
    weighted = with_frequencies(there, weights, where)
    if weighted is there or argument is None or before or len(shape) > 1:
        return weighted

    def anew(times: Int[np.ndarray, " row"]) -> Model:
        arrays, named = (
            {key: x if np.shape(x)[:1] != shape else np.repeat(x, times, 0) for key, x in part}
            for part in (given.items(), dict(columns or {}).items())
        )
        options: dict[str, Any] = {"units": units, "coords": coords, "dims": dims}
        made: Model = from_numpyro(model, arrays, columns=named, **options)
        return made

    return from_repeated_rows(weighted, anew)


def _terms(site: Mapping[str, Any], y: Array, missing: Bool[np.ndarray, "..."]) -> Array:
    """Terms of an observed site at other values; 0 where these are missing, with a gradient."""
    fn, scale = site["fn"], site["scale"]
    if missing.any():
        inner = np.reshape(missing, missing.shape + (1,) * (jnp.ndim(y) - missing.ndim))
        y = jnp.where(inner, y[np.unravel_index(np.argmin(missing), missing.shape)], y)
    terms = fn.log_prob(y) * (1.0 if scale is None else scale)
    return jnp.where(missing, 0.0, terms) if missing.any() else terms


def _refuse_factors_of_outcome(
    model: Callable[..., Any], given: Mapping[str, Any], found: Sites, where: str
) -> None:
    """Refuse factors that depend on what is observed, or that may do so unseen."""
    first = next(iter(found.factors))
    arrays = {key: x for key, x in given.items() if isinstance(x, np.ndarray)}
    holding: dict[str, np.ndarray] = {}
    for name, site in found.observed.items():
        held = {key: x for key, x in arrays.items() if holds_outcome(x, np.asarray(site["value"]))}
        if not held:
            raise PcvError(
                f"{where}: numpyro.factor '{first}' is part of the prior if it does not depend on "
                f"'{name}', which cannot be tried as '{name}' is no argument; give it by data=..."
            )
        holding |= held
    values = {name: site["value"] for name, site in found.latent.items()}

    def factors_of(others: Mapping[str, np.ndarray]) -> dict[str, Array]:
        kwargs = {**given, **others}
        kwargs = as_jax(kwargs) if found.in_jax else kwargs
        terms, _ = compute_log_probs(model, (), kwargs, values)
        return {name: terms[name] for name in found.factors}

    check_factors(factors_of, holding, lambda name: f"{where}: numpyro.factor '{name}'")


def _categories(
    observed: Mapping[str, Any], discrete: bool | None
) -> tuple[bool | None, int | None]:
    """Whether values of the outcome are ordered, and its number of categories; None: unknown, as is
    the order of a `Categorical`, which ordinal models may be written with."""
    if not discrete or len(observed) > 1:
        return None, None
    (site,) = observed.values()
    fn = site["fn"]
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    if not isinstance(fn, dist.CategoricalProbs | dist.CategoricalLogits):
        return True, None
    ordered = True if isinstance(fn, dist.OrderedLogistic) else None
    return ordered, int(fn.support.upper_bound) + 1


def _as_array(x: Any) -> Any:
    """Copies of columns of tables and lists of numbers as arrays, NaN where they are masked, 0-d
    arrays as numbers, all else unchanged."""
    if isinstance(x, str | bytes | bool | int | float | Mapping) or x is None or callable(x):
        return x
    array = np.array(np.ma.filled(x.astype(float), np.nan) if np.ma.is_masked(x) else x)
    if array.dtype.kind not in "biuf":
        return x
    return array if array.ndim else array.item()


def _differs(now: Any, then: np.ndarray) -> bool:
    """Whether an outcome that the model's function encloses has other values than it had."""
    if isinstance(now, jax.core.Tracer) or np.shape(now) != then.shape:
        return False
    return not np.allclose(now, then, atol=0, equal_nan=True)


def _argument(kwargs: Mapping[str, Any], observed: np.ndarray) -> tuple[str | None, int]:
    """The argument of the model that holds the observed values, and how many others it has before
    them, which serve as lags."""
    arrays = {name: x for name, x in kwargs.items() if isinstance(x, np.ndarray)}
    for name, x in arrays.items():
        if x.shape == observed.shape and _equal(x, observed):
            return name, 0
    for name, x in arrays.items():
        before = x.size - observed.size
        series = x.ndim == observed.ndim == 1 and before > 0 and observed.size >= MIN_SERIES
        if series and _equal(x[before:], observed):
            return name, before
    return None, 0


def _equal(x: np.ndarray, y: np.ndarray) -> bool:
    floats = x.dtype.kind == y.dtype.kind == "f"
    return bool(np.array_equal(x, y, equal_nan=floats))


def _works(function: Callable[[Key[Array, ""]], Any]) -> bool:
    """Whether a function runs: NumPyro does not implement it for all distributions."""
    try:
        jax.eval_shape(function, jax.random.key(0))
    except (NotImplementedError, TypeError, AttributeError):
        return False
    return True
