"""log p(y) by each way, which of them is the answer, and where they do not fit together."""

import numpy as np
import xarray as xr

from pcv.analysis.evidence.curves import Estimate, evidence

PATH, BRIDGE, LAPLACE = "growing training sets", "bridge sampling", "Laplace"
MAX_APART, LEAST_APART = 4.0, 0.05
"""MCSEs, and nats, by which two ways to the evidence may differ"""
MAX_SPREAD = 1.0
"""nats between estimates along one order"""
GOOD_K = 0.7
"""k-hat up to which Laplace's approximation counts"""
LARGE_MCSE = 0.1
"""nats that are too many for a Bayes factor, and to tell whether another way is right"""


FEW_ORDERS = 10
"""below which their spread says little of the SE"""


def of_path(path: xr.Dataset) -> Estimate:
    """log p(y) of a model; NaN where its prior is improper."""
    if path.attrs["improper"]:
        return Estimate(np.nan, np.nan)
    return evidence(path["log_evidence"].values[:, :, -1])


def other_ways(path: xr.Dataset) -> dict[str, tuple[Estimate, float]]:
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
    return {PATH: (of_path(path), np.nan), **other_ways(path)}


def answer(path: xr.Dataset) -> tuple[str, Estimate]:
    """log p(y), and by which way: by bridge sampling where that is more accurate than growing
    training sets, which have no part in common with it and are accurate enough to tell that it
    agrees."""
    found = of_path(path)
    by_bridge, _ = other_ways(path).get(BRIDGE, (Estimate(np.nan, np.nan), np.nan))
    agrees = found.mcse <= LARGE_MCSE and not _apart(found, by_bridge)
    return (BRIDGE, by_bridge) if agrees and by_bridge.mcse < found.mcse else (PATH, found)


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
            tail = f", k-hat {khat:.2f}" if np.isfinite(khat) else ""
            known = np.isfinite(estimate.value)
            said = f"{number(estimate)} ({estimate.mcse:.2g}{tail})" if known else "unknown"
            if way == LAPLACE and path.attrs["no_laplace"]:
                said += f" ({path.attrs['no_laplace']})"
            words.append(f"by {way} {said}")
    return ", ".join(words)


def number(found: Estimate) -> str:
    """As many decimals as its error allows, three at most."""
    decimals = 3 if found.mcse == 0 else int(np.clip(1 - np.floor(np.log10(found.mcse)), 0, 3))
    return f"{found.value:.{decimals}f}"


def doubts(path: xr.Dataset) -> list[str]:
    """In words, where estimates are too noisy, or bridge sampling or a good Laplace approximation
    differs."""
    said = []
    whole = path["log_evidence"].values[:, :, -1]
    if (spread := float(np.sqrt(whole.var(1, ddof=1).mean()))) > MAX_SPREAD:
        said.append(
            f"estimates along one order differ by {spread:.1f} nats, too much for their MCSE to be "
            "trusted; use more particles"
        )
    elif (mcse := answer(path)[1].mcse) > LARGE_MCSE:
        said.append(f"log p(y) has an MCSE of {mcse:.2g} nats; use more splits, or particles")
    if (orders := whole.shape[0]) < FEW_ORDERS:
        said.append(f"SEs over {orders} orders can be far too small; use more splits")
    found = of_path(path)
    for way, (estimate, khat) in other_ways(path).items():
        if _apart(found, estimate) and not khat > GOOD_K:
            error = np.hypot(found.mcse, estimate.mcse)
            said.append(
                f"log p(y) by {way} differs by {estimate.value - found.value:.2f} nats (MCSE "
                f"{error:.2g}): `log_prior` lacks a constant, or one of both did not reach all of "
                "the posterior"
            )
            break
    return said
