"""The full-data fit in ArviZ's groups, and read back from them."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from pcv.compile import programs
from pcv.models.model import Params, Target
from pcv.pipeline.storage.storable import storable
from pcv.sampling.fit.draws import Draws
from pcv.sampling.fit.fit_checks import Checks
from pcv.sampling.fit.full_data import Fit
from pcv.sampling.kernel import Kernel

OF_KERNEL = {
    "center": ("param",),
    "scale": ("param",),
    "directions": ("param", "direction"),
    "ratios": ("direction",),
}
OF_FIT = ("step_size", "num_steps", "target_accept")
"""fields of a fit that are attributes of its kernel"""
AT_ONCE = 100
"""draws transformed to named variables in parallel"""


def tree(
    target: Target,
    log_lik: Callable[[Float[Array, " param"]], Float[Array, " unit"]] | None,
    dataset: xr.Dataset,
    names: list[str],
    fit: Fit,
    checks: Checks,
) -> xr.DataTree:
    """ArviZ's groups (posterior, sample_stats, log_likelihood, observed_data) and ours.

    Args:
        target: on flat parameters, with the transform to named variables.
        log_lik: the unit log likelihoods at a position, for models that have them.
        dataset: the data artifact, for unit names and the outcome.
        names: of the flat parameters.
        fit: the full-data posterior.
        checks: its diagnostics.

    Returns:
        Additional groups: ``unconstrained`` (position: chain, draw, param), ``checks``,
        ``kernel``.
    """

    draws = fit.draws

    def each(function: Callable[[Float[Array, " param"]], Any]) -> Any:
        over_chains = programs.shared(lambda x: jax.lax.map(function, x, batch_size=AT_ONCE))
        of_draws = [jax.device_get(over_chains(x)) for x in draws.position.swapaxes(0, 1)]
        return jax.tree.map(lambda *x: np.stack(x, axis=1), *of_draws)

    def constrained(position: Float[Array, " param"]) -> Params:
        variables = target.constrain(position)
        return {name: x for name, x in variables.items() if x.size}  # some may be empty

    variables = each(constrained)
    chain_draw = ("chain", "draw")
    index = {name: np.arange(n) for name, n in zip(chain_draw, draws.lp.shape)}
    named = {dim for name, x in variables.items() for dim in dims_of(target, name, x.ndim - 2)}
    groups = {
        "posterior": xr.Dataset(
            {
                name: ((*chain_draw, *dims_of(target, name, x.ndim - 2)), x)
                for name, x in variables.items()
            },
            index | {name: x for name, x in target.coords.items() if name in named},
        ),
        "sample_stats": xr.Dataset(
            {
                name: (chain_draw, x)
                for name, x in (draws._asdict() | {"log_weight": fit.log_weight}).items()
                if name != "position" and x is not None
            },
            index,
        ),
        "observed_data": dataset[[target.outcome.name]].drop_attrs(),
        "unconstrained": xr.Dataset(
            {"position": ((*chain_draw, "param"), draws.position)}, index | {"param": names}
        ),
        "kernel": xr.Dataset(
            {name: (dims, getattr(fit.kernel, name)) for name, dims in OF_KERNEL.items()},
            {"param": names},
            {name: getattr(fit, name) for name in OF_FIT},
        ),
        "checks": xr.Dataset(
            {
                "rhat": ("param", checks.rhat),
                "ess": ("param", checks.ess),
                "efmi": ("chain", checks.efmi),
                "divergences": checks.divergences,
            },
            {"param": names},
            {"problems": checks.problems, "warnings": checks.warnings},
        ),
    }
    if log_lik is not None:
        groups["log_likelihood"] = xr.Dataset(
            {target.outcome.name: ((*chain_draw, "unit"), each(log_lik))},
            index | {"unit": dataset["unit"].values},
        )
    return xr.DataTree.from_dict({name: storable(group) for name, group in groups.items()})


def dims_of(target: Target, name: str, ndim: int) -> list[str]:
    """Dimension names of a variable: the model's, or ArviZ's defaults."""
    return list(target.dims.get(name, [f"{name}_dim_{i}" for i in range(ndim)]))


def fit(dataset: xr.Dataset) -> Fit:
    """The fit, without its draws, from the group ``kernel`` of a fit artifact."""
    kernel = Kernel(**{name: dataset[name].values for name in OF_KERNEL})
    nothing = Draws(*(np.zeros((0, 0)) for _ in Draws._fields))
    return Fit(nothing, kernel, **{name: dataset.attrs[name] for name in OF_FIT})
