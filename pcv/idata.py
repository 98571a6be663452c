"""The full-data fit laid out as ArviZ expects it, and read back."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from pcv.model import Params, Target
from pcv.nuts import Checks, Draws
from pcv.sampler import Kernel
from pcv.storable import storable
from pcv.tuning import Tuned

AT_ONCE = 100
"""draws that are turned into named variables at one time"""


def tree(
    target: Target,
    log_lik: Callable[[Float[Array, " param"]], Float[Array, " unit"]] | None,
    dataset: xr.Dataset,
    names: list[str],
    draws: Draws,
    checks: Checks,
    tuned: Tuned | None,
) -> xr.DataTree:
    """ArviZ's groups (posterior, sample_stats, log_likelihood, observed_data) and ours.

    Args:
        target: on flat parameters; gives the named variables.
        log_lik: the unit log likelihoods at a position, of a model that has them.
        dataset: the data artifact, for unit names and the outcome.
        names: of the flat parameters.
        draws: of the full-data posterior.
        checks: their diagnostics.
        tuned: the kernel of the folds, if the fit was good enough to tune one.

    Returns:
        Additional groups: ``unconstrained`` (position: chain, draw, param), ``checks``,
        ``kernel``.
    """

    def each(function: Callable[[Float[Array, " param"]], Any]) -> Any:
        over_draws = jax.jit(lambda x: jax.lax.map(function, x, batch_size=AT_ONCE))
        chains = [jax.device_get(over_draws(x)) for x in draws.position]
        return jax.tree.map(lambda *x: np.stack(x), *chains)

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
            {name: (chain_draw, x) for name, x in draws._asdict().items() if name != "position"},
            index,
        ),
        "observed_data": dataset[[target.outcome.name]].drop_attrs(),
        "unconstrained": xr.Dataset(
            {"position": ((*chain_draw, "param"), draws.position)}, index | {"param": names}
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
    if tuned is not None:
        groups["kernel"] = xr.Dataset(
            {
                name: (("param", "column")[: x.ndim], np.asarray(x))
                for name, x in tuned.kernel._asdict().items()
                if x is not None
            },
            {"param": names},
            {"slowest": tuned.slowest, "target_accept": tuned.target_accept},
        )
    return xr.DataTree.from_dict({name: storable(group) for name, group in groups.items()})


def dims_of(target: Target, name: str, ndim: int) -> list[str]:
    """Dimensions of a variable, named as ArviZ does where the model does not."""
    return list(target.dims.get(name, [f"{name}_dim_{i}" for i in range(ndim)]))


def kernel(dataset: xr.Dataset) -> Kernel:
    """The kernel that ``kernel`` of a fit artifact describes."""
    stored = {str(name): jax.numpy.asarray(x.values) for name, x in dataset.data_vars.items()}
    return Kernel(**stored)
