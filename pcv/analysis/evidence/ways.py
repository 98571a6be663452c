"""log p(y) by each way, which of them is the answer, and where they do not fit together."""

import numpy as np
import xarray as xr

from pcv.analysis.evidence.curves import Estimate, evidence

PATH, BRIDGE, LAPLACE = "growing training sets", "bridge sampling", "Laplace"
MAX_APART, LEAST_APART = 4.0, 0.05
"""MCSEs, and nats, by which two ways to the evidence may differ"""
MAX_SPREAD, SKEWED = 1.0, 0.5
"""nats between estimates along one order; and sd of all, beyond which few of them, that are seldom
seen, may carry their mean"""
GOOD_K = 0.7
"""k-hat up to which Laplace's approximation counts"""
LARGE_MCSE = 0.1
"""nats that are too many for a Bayes factor, and to tell whether another way is right"""
NOTHING = Estimate(0.0, 0.0)
"""log of the integral of a prior that lacks no constant"""
FEW_ORDERS = 10
"""below which their spread says little of the SE"""


def of_path(path: xr.Dataset) -> Estimate:
    """log p(y) of a model; NaN where its prior is improper."""
    if path.attrs["improper"]:
        return Estimate(np.nan, np.nan)
    return evidence(path["log_evidence"].values[:, :, -1])


def of_ways(path: xr.Dataset) -> dict[str, tuple[Estimate, float]]:
    """log p(y) from the full-data fit and from Laplace's approximation, with k-hat, or NaN."""
    found = {}
    for way in path["way"].values.tolist() if "way" in path else []:
        value, mcse, khat = (
            float(path[x].sel(way=way)) for x in ("log_evidence_by", "mcse_by", "khat")
        )
        found[way] = Estimate(value, mcse), khat
    return found


def every_way(path: xr.Dataset) -> dict[str, tuple[Estimate, float]]:
    """log p(y) along growing training sets as well, and k-hat."""
    return {PATH: (of_path(path), np.nan), **of_ways(path)}


def answer(path: xr.Dataset) -> tuple[str, Estimate]:
    """log p(y), and by which way: by bridge sampling where that is more accurate than growing
    training sets, and these or Laplace's approximation confirm it.

    Where bridge sampling and Laplace's approximation agree, growing training sets that are lower
    have missed a part of the posterior. If they are higher, the others have: estimates with mean
    p(y) are seldom far above it (Markov's inequality).
    """
    by_path, ways = of_path(path), of_ways(path)
    by_bridge, _ = ways.get(BRIDGE, (Estimate(np.nan, np.nan), np.nan))
    differs = _apart(by_path, by_bridge)
    if by_path.mcse <= LARGE_MCSE and not differs:
        return (BRIDGE, by_bridge) if by_bridge.mcse < by_path.mcse else (PATH, by_path)
    higher = differs and by_path.value > by_bridge.value
    if LAPLACE in ways and not higher and confirmed(by_bridge, *ways[LAPLACE], of_prior(path)):
        return BRIDGE, by_bridge
    return PATH, by_path


def of_prior(path: xr.Dataset) -> Estimate:
    """Log of the integral of the prior's density: 0 where `log_prior` lacks no constant."""
    return Estimate(path.attrs["log_prior_integral"], path.attrs["log_prior_integral_mcse"])


def confirmed(by_bridge: Estimate, by_laplace: Estimate, khat: float, prior: Estimate) -> bool:
    """Whether bridge sampling and a good Laplace approximation agree, of a prior that is known to
    integrate to 1: a constant that it lacks is in both."""
    accurate = all(x.mcse <= LARGE_MCSE for x in (by_bridge, by_laplace)) and not khat > GOOD_K
    return accurate and _is_normalised(prior) and not _apart(by_bridge, by_laplace)


def _is_normalised(prior: Estimate) -> bool:
    """Whether the prior's density is known to integrate to 1."""
    return prior.mcse <= LARGE_MCSE and not _apart(prior, NOTHING)


def _apart(one: Estimate, other: Estimate) -> bool:
    error = MAX_APART * np.hypot(one.mcse, other.mcse)
    return bool(abs(one.value - other.value) > max(error, LEAST_APART))


def in_words(path: xr.Dataset) -> str:
    """log p(y) by each way, in a line."""
    if wrong := path.attrs["improper"]:
        return (
            f"no evidence, as the prior of '{wrong}' is improper, or `init` does not draw from it"
        )
    best, found = answer(path)
    words = [f"log p(y) {number(found)} (MCSE {found.mcse:.2g}) by {best}"]
    for way, (estimate, khat) in every_way(path).items():
        if way != best:
            said = beside(way, estimate, khat)
            if way == LAPLACE and path.attrs["no_laplace"]:
                said += f" ({path.attrs['no_laplace']})"
            words.append(said)
    return ", ".join(words)


def beside(way: str, estimate: Estimate, khat: float) -> str:
    """log p(y) by a way that is not the answer's."""
    if not np.isfinite(estimate.value):
        return f"by {way} unknown"
    tail = f", k-hat {khat:.2f}" if np.isfinite(khat) else ""
    return f"by {way} {number(estimate)} ({estimate.mcse:.2g}{tail})"


def number(found: Estimate) -> str:
    """As many decimals as its error allows, three at most."""
    decimals = 3 if found.mcse == 0 else int(np.clip(1 - np.floor(np.log10(found.mcse)), 0, 3))
    return f"{found.value:.{decimals}f}"


def doubts(path: xr.Dataset) -> list[str]:
    """In words, where estimates are too noisy, or bridge sampling or a good Laplace approximation
    differs."""
    said = []
    whole = path["log_evidence"].values[:, :, -1]
    best, found = answer(path)
    if (spread := float(np.sqrt(whole.var(1, ddof=1).mean()))) > MAX_SPREAD:
        said.append(
            f"estimates along one order differ by {spread:.1f} nats, too much for their MCSE to be "
            "trusted; use more particles"
        )
    elif best == PATH and (spread := float(whole.std(ddof=1))) > SKEWED:
        said.append(
            f"estimates of log p(y) along growing training sets differ by {spread:.1f} nats, so "
            "that their MCSE may be too small; use more particles"
        )
    elif (mcse := found.mcse) > LARGE_MCSE:
        said.append(f"log p(y) has an MCSE of {mcse:.2g} nats; use more splits, or particles")
    if (orders := whole.shape[0]) < FEW_ORDERS:
        said.append(f"SEs over {orders} orders can be far too small; use more splits")
    for way, (estimate, khat) in every_way(path).items():
        if _apart(found, estimate) and not khat > GOOD_K:
            error = np.hypot(found.mcse, estimate.mcse)
            said.append(
                f"log p(y) by {way} differs by {estimate.value - found.value:.2f} nats (MCSE "
                f"{error:.2g}): {_why_apart(path, way, estimate.value - found.value)}"
            )
            break
    return said


def _why_apart(path: xr.Dataset, way: str, by: float) -> str:
    """Why a way differs from the answer by so much. Estimates that are too low have missed a part
    of the posterior; a constant of the prior is in all ways but growing training sets."""
    prior = of_prior(path)
    if _apart(prior, NOTHING) and not _apart(prior, Estimate(by, 0.0)):
        return (
            f"`log_prior` lacks a constant, the log of its integral is {number(prior)} (MCSE "
            f"{prior.mcse:.2g})"
        )
    if way == PATH:
        return (
            "some of its estimates are too low, as bridge sampling and Laplace's approximation "
            "agree; use more particles"
        )
    why = (
        "it did not reach all of the posterior" if by < 0 else "the others did not reach all of it"
    )
    return why if _is_normalised(prior) else f"{why}, or `log_prior` lacks a constant"
