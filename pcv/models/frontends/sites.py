"""Trace the sites of a NumPyro model, and refuse those that cross-validation cannot handle."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Key
from numpyro import handlers
from numpyro.infer.initialization import init_to_uniform

from pcv.base.errors import PcvError, in_one_line
from pcv.models.frontends.rows import Layout

Site = dict[str, Any]


class Sites(NamedTuple):
    """Sites of a traced model."""

    latent: dict[str, Site]
    observed: dict[str, Site]
    factors: dict[str, Site]
    in_jax: bool
    """whether its arrays must be JAX's, to be indexed by draws; NumPy's let it compute sizes"""
    moving: bool
    """whether draws may rule out observations, whose support depends on them"""


def sites_of(model: Callable[..., Any], given: Mapping[str, Any], where: str) -> Sites:
    """Trace a model and separate latent from observed sites.

    Raises:
        PcvError: the model does not run, or folds cannot be made of its sites.
    """

    def values(key: Key[Array, ""], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        sites = run(model, key, kwargs)
        return {name: x["value"] for name, x in sites.items() if x["type"] == "sample"}

    errors = []
    for in_jax in (False, True):
        kwargs = as_jax(given) if in_jax else given
        try:
            sites = run(model, 0, kwargs)
            _refuse_text(sites, where)
            jax.eval_shape(partial(values, kwargs=kwargs), jax.random.key(0))
        except PcvError:
            raise
        except Exception as error:  # user code may raise anything
            errors.append(error)
        else:
            return _usable(sites, in_jax, where)
    names = ", ".join(given) or "no arguments"
    first, last = errors
    said = in_one_line(last if isinstance(first, jax.errors.JAXTypeError) else first)
    hint = next((f"; {name}{wrong}" for name, x in given.items() if (wrong := _unusable(x))), "")
    raise PcvError(f"{where}: fails when called with {names}: {said}{hint}") from first


def run(
    model: Callable[..., Any], key: Key[Array, ""] | int, kwargs: Mapping[str, Any]
) -> dict[str, Site]:
    """All sites, latent ones drawn from their prior, or uniformly if it cannot be sampled."""
    start = handlers.substitute(handlers.seed(model, key), substitute_fn=_initial_value)
    found: dict[str, Site] = handlers.trace(start).get_trace(**kwargs)
    return found


def _initial_value(site: Site) -> Any:
    """An initial value for latent sites whose prior cannot be sampled."""
    if site["type"] != "sample" or site["is_observed"]:
        return None
    try:
        jax.eval_shape(site["fn"].sample, jax.random.key(0))
    except NotImplementedError:
        return init_to_uniform(site)
    return None


def as_jax(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """NumPy arrays converted to JAX, at the current precision."""
    with jax.ensure_compile_time_eval():
        return {
            name: jnp.asarray(x) if isinstance(x, np.ndarray) and x.dtype.kind in "biuf" else x
            for name, x in arguments.items()
        }


def _refuse_text(sites: Mapping[str, Site], where: str) -> None:
    for name, site in sites.items():
        if site["type"] == "sample" and np.asarray(site["value"]).dtype.kind in "OSU":
            shown = np.ravel(np.asarray(site["value"]))[0]
            if not isinstance(shown, str | bytes):
                raise PcvError(
                    f"{where}: site '{name}' has dtype object; convert it to numbers, as with "
                    "np.asarray(x, float)"
                )
            raise PcvError(
                f"{where}: site '{name}' holds {str(shown)!r}, which is not a number; recode it, "
                "for example as 0 and 1"
            )


def _unusable(x: Any) -> str:
    """An obvious reason why a model may fail with an argument, or nothing."""
    array = np.asarray(x)
    if array.dtype.kind in "OSU" and array.size and isinstance(np.ravel(array)[0], str):
        return f" holds text ({str(np.ravel(array)[0])!r}): recode it as numbers"
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return ""
    place = np.argwhere(~np.isfinite(array))[0].tolist()
    return f"{place} is {array[tuple(place)]}: fill it in, or drop its observation"


def _usable(sites: Mapping[str, Site], in_jax: bool, where: str) -> Sites:
    sampled = {name: site for name, site in sites.items() if site["type"] == "sample"}
    latent = {name: site for name, site in sampled.items() if not site["is_observed"]}
    given = {name: site for name, site in sampled.items() if site["is_observed"]}
    factors = {name: site for name, site in given.items() if isinstance(site["fn"], dist.Unit)}
    observed = {name: site for name, site in given.items() if name not in factors}
    for name, site in sites.items():
        if site["type"] == "param":
            raise PcvError(
                f"{where}: '{name}' is a numpyro.param, which has no prior; make it a sample site"
            )
        if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0]):
            raise PcvError(
                f"{where}: plate '{name}' subsamples {site['args'][1]} of {site['args'][0]} "
                "elements; cross-validation needs them all: drop subsample_size"
            )
    for name, site in latent.items():
        if site["fn"].support.is_discrete:
            if (of := _masked_by(name, sampled)) is not None:
                raise PcvError(
                    f"{where}: '{of}' is discrete, so that its missing values (obs_mask) cannot be "
                    "sampled; leave them out by NaN, or handlers.mask"
                )
            raise PcvError(
                f"{where}: latent site '{name}' is discrete, which HMC cannot sample; "
                "marginalise it out, for example with numpyro.distributions.MixtureSameFamily"
            )
    if not observed:
        raise PcvError(f"{where}: no site is observed; give one obs=...")
    if not latent:
        raise PcvError(f"{where}: no latent site; there is nothing to sample")
    bounds = jax.tree.leaves([site["fn"].support for site in observed.values()])
    moving = any(isinstance(x, jax.Array) for x in bounds)
    return Sites(latent, observed, factors, in_jax or moving, moving)


def notes_on(found: Sites) -> list[str]:
    """Caveats for readers of the scores."""
    notes = []
    for name, site in found.observed.items():
        by = np.unique(1.0 if site["scale"] is None else np.asarray(site["scale"]))
        if (by != 1).any():
            times = f"times {by[0]:g}" if by.size == 1 else "times varying factors"
            notes.append(f"scores of '{name}' are of its log density {times} (handlers.scale)")
    improper = [f"'{name}'" for name, site in found.latent.items() if _improper(site["fn"])]
    if improper:
        notes.append(
            f"the prior of {', '.join(improper)} is improper (ImproperUniform): a fold's posterior "
            "may be improper too, if the fold leaves out the data that inform it"
        )
    return notes


def _improper(fn: dist.Distribution) -> bool:
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return isinstance(fn, dist.ImproperUniform)


def layout_of(site: Site, name: str, where: str) -> Layout:
    """Dimensions of an observed site, named after their plates, or the variable."""
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
            f"{where}: observed site '{site['name']}' has shape {value} but is a single event; "
            "declare its observations with a plate, or drop to_event; for jointly normal outcomes, "
            "as in a Gaussian process, use pcv.normal_target"
        )
    plates = {frame.dim: frame.name for frame in site["cond_indep_stack"]}
    dims = [plates.get(axis - len(batch), f"{name}_dim_{axis}") for axis in range(len(batch))]
    inner = [f"{name}_dim_{axis}" for axis in range(len(batch), len(value))]
    return Layout(tuple(dims), tuple(inner), value)


def dims_of(latent: Mapping[str, Site]) -> dict[str, list[str]]:
    """Dimensions of latent sites, named after their plates."""
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


def _masked_by(latent: str, sites: Mapping[str, Site]) -> str | None:
    """The name that `obs_mask` splits into observed and latent sites, if these are its own."""
    name = latent.removesuffix("_unobserved")
    return name if name != latent and f"{name}_observed" in sites else None


def imputed(found: Sites) -> dict[str, Bool[np.ndarray, "..."]]:
    """Of latent sites by `obs_mask`, which of their elements are missing, and so are parameters."""
    return {
        name: np.broadcast_to(np.asarray(_mask(site["fn"])), site["fn"].batch_shape)
        for name, site in found.latent.items()
        if _masked_by(name, found.observed) is not None
    }


def plain_names(found: Sites) -> dict[str, str]:
    """Names of observed sites, without what `obs_mask` adds."""
    added = {f"{_masked_by(name, found.observed)}_observed" for name in found.latent}
    return {
        name: name.removesuffix("_observed") if name in added else name for name in found.observed
    }


def missing_from(site: Site, shape: tuple[int, ...], where: str) -> Bool[np.ndarray, "..."]:
    """Which terms of an observed site are missing: hidden by a mask, or NaN.

    Raises:
        PcvError: only parts of a vector outcome are.
    """
    hidden = ~np.broadcast_to(np.asarray(_mask(site["fn"])), shape)
    value = np.asarray(site["value"])
    lost = np.isnan(value) if value.dtype.kind == "f" else np.zeros(value.shape, bool)
    inner = tuple(range(len(shape), value.ndim))
    some, every = lost.any(inner), lost.all(inner)
    if (partly := some & ~every & ~hidden).any():
        place = np.argwhere(partly)[0].tolist()
        raise PcvError(
            f"{where}: parts of {site['name']}{place} are missing (NaN), and its density does not "
            "split; drop it, or declare its parts as observations"
        )
    return hidden | some


def _mask(fn: dist.Distribution) -> Any:
    if isinstance(fn, dist.MaskedDistribution):
        return jnp.logical_and(fn._mask, _mask(fn.base_dist))
    return _mask(fn.base_dist) if isinstance(fn, dist.ExpandedDistribution) else True
