"""The full-data fit in ArviZ's groups, and what later steps read from them."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from pcv.analysis.verdicts import ENOUGH_ESS
from pcv.base.errors import PcvError, kind_of
from pcv.base.storable import storable, true_names
from pcv.compile import programs
from pcv.models.model import Params, Target
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


class Shown(NamedTuple):
    """Programs of what is stored of a chain's draws."""

    variables: programs.Shared
    """by name"""
    log_lik: programs.Shared | None
    """of units, for models that have them"""


def shown(
    target: Target, log_lik: Callable[[Float[Array, " param"]], Float[Array, " unit"]] | None
) -> Shown:
    """The programs of what is stored of each draw.

    Args:
        target: on flat parameters, with the transform to named variables.
        log_lik: the unit log likelihoods at a position; None: they are not stored.
    """

    def constrained(position: Float[Array, " param"]) -> Params:
        variables = target.constrain(position)
        return {name: x for name, x in variables.items() if x.size}  # some may be empty

    def over_draws(function: Callable[[Float[Array, " param"]], Any]) -> programs.Shared:
        return programs.shared(lambda x: jax.lax.map(function, x, batch_size=AT_ONCE))

    return Shown(over_draws(constrained), None if log_lik is None else over_draws(log_lik))


def tree(
    target: Target,
    shown: Shown,
    dataset: xr.Dataset,
    names: list[str],
    fit: Fit,
    checks: Checks,
) -> xr.DataTree:
    """ArviZ's groups (posterior, sample_stats, log_likelihood, observed_data) and ours.

    Args:
        target: on flat parameters.
        shown: programs of what is stored of each draw.
        dataset: the data artifact, for unit names and the outcome.
        names: of the flat parameters.
        fit: the full-data posterior.
        checks: its diagnostics.

    Returns:
        Additional groups: ``unconstrained`` (position: chain, draw, param), ``checks``,
        ``kernel``.
    """

    draws = fit.draws

    def each(over_chains: programs.Shared) -> Any:
        of_draws = [jax.device_get(over_chains(x)) for x in draws.position.swapaxes(0, 1)]
        return jax.tree.map(lambda *x: np.stack(x, axis=1), *of_draws)

    variables = each(shown.variables)
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
        "checks": group_checks(checks, names),
    }
    if shown.log_lik is not None:
        groups["log_likelihood"] = xr.Dataset(
            {target.outcome.name: ((*chain_draw, "unit"), each(shown.log_lik))},
            index | {"unit": dataset["unit"].values},
        )
    return xr.DataTree.from_dict({name: storable(group) for name, group in groups.items()})


def group_checks(checks: Checks, names: Sequence[str]) -> xr.Dataset:
    """The group ``checks`` of a fit.

    Args:
        checks: of the fit.
        names: of the parameters.
    """
    return xr.Dataset(
        {
            "rhat": ("param", checks.rhat),
            "ess": ("param", checks.ess),
            "efmi": ("chain", checks.efmi),
            "divergences": checks.divergences,
        },
        {"param": list(names)},
        {"problems": checks.problems, "warnings": checks.warnings},
    )


def dims_of(target: Target, name: str, ndim: int) -> list[str]:
    """Dimension names of a variable: the model's, or ArviZ's defaults."""
    return list(target.dims.get(name, [f"{name}_dim_{i}" for i in range(ndim)]))


def tuned_fit(tree: xr.DataTree) -> Fit:
    """The kernel and sampler settings of a fit, without its draws."""
    kernel = true_names(tree["kernel"].to_dataset())
    fields = {name: kernel[name].values for name in OF_KERNEL}
    nothing = Draws(*(np.zeros((0, 0)) for _ in Draws._fields))
    return Fit(nothing, Kernel(**fields), **{name: kernel.attrs[name] for name in OF_FIT})


def positions(tree: xr.DataTree) -> Float[np.ndarray, "chain draw param"]:
    """Draws as flat unconstrained parameters."""
    draws = tree["unconstrained/position"].transpose("chain", "draw", ...)
    return np.asarray(draws.values)


def has_few_draws(tree: xr.DataTree) -> bool:
    """Whether draws of a fit are too bad, or too few, to be the other side of folds."""
    checks = tree["checks"]
    return bool(len(checks.attrs["problems"]) or checks["ess"].min() < ENOUGH_ESS)


def log_weights(tree: xr.DataTree) -> Float[np.ndarray, "chain draw"] | None:
    """Log weights of an approximation's draws; None: all alike."""
    stats = tree["sample_stats"].to_dataset()
    return stats["log_weight"].values if "log_weight" in stats else None


def log_likelihoods(tree: xr.DataTree, outcome: str) -> xr.DataArray | None:
    """Log likelihoods of all units, if the fit stores them (chain, draw, unit)."""
    if "log_likelihood" not in tree:
        return None
    stored = true_names(tree["log_likelihood"].to_dataset())[outcome]
    return stored.transpose("chain", "draw", ...)


def posteriors_of(fit: Any, models: Sequence[str]) -> tuple[dict[str, Any], dict[str, xr.DataTree]]:
    """Settings of the full-data fit, or its existing draws by model name."""
    fit = _of_cmdstanpy(fit)
    if isinstance(fit, dict):
        fit = {name: _of_cmdstanpy(x) for name, x in fit.items()}
    given = dict.fromkeys(models, fit) if _is_tree(fit) else fit
    if not isinstance(given, Mapping):
        raise PcvError(
            f"fit is {kind_of(fit)}; give settings by name, or draws as an ArviZ DataTree with a "
            "group 'posterior'"
        )
    if not any(map(_is_tree, given.values())):
        if "file" in given:
            raise PcvError(
                "only configs name a file of draws",
                ("fit", "file"),
                "open it, and pass fit=xr.open_datatree(...)",
            )
        return dict(given), {}
    if set(given) != set(models) or (given is not fit and len(models) > 1):
        wanted = ", ".join(map(repr, models))
        raise PcvError(f"fit holds draws; give those of each model by its name: {wanted}")
    return {}, {name: _tree(x) for name, x in given.items()}


def _of_cmdstanpy(x: Any) -> Any:
    """A fit of CmdStanPy as a DataTree, all else unchanged."""
    cmdstanpy = sys.modules.get("cmdstanpy")
    if cmdstanpy is None or not isinstance(x, cmdstanpy.CmdStanMCMC):
        return x
    from arviz_base import from_cmdstanpy

    return from_cmdstanpy(x)


def _is_tree(x: Any) -> bool:
    return isinstance(x, xr.DataTree) or isinstance(getattr(x, "posterior", None), xr.Dataset)


def _tree(x: Any) -> xr.DataTree:
    """The groups needed, from a DataTree or an older InferenceData."""
    groups = {name: getattr(x, name, None) for name in ("posterior", "sample_stats")}
    return xr.DataTree.from_dict(
        {
            name: group if isinstance(group, xr.Dataset) else group.to_dataset()
            for name, group in groups.items()
            if group is not None
        }
    )
