"""pcv on a GPU, in eight minutes: `python -m benchmarks.gpu`, on a machine whose JAX sees one.

The regression of `benchmarks.scaling`, from a hundred chains to a hundred thousand, in both
precisions, beside the paper's sampler of the same folds, whose chains keep every score; the memory
that either takes; and folds on the GPU from a fit that was made on the CPU. Each measurement is a
process of its own, and none is begun after the time is up. Written to `benchmarks/results/`.
"""

import os
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.bench import alone, save

SECONDS = 480
CHAINS = (100, 1_000, 10_000, 100_000)
EACH = 4
"""chains of a fold"""
PARAMETERS = 10


def by_pcv(chains: int, precision: str, fit: str = "") -> list[dict[str, Any]]:
    """Two calls; with `fit`, of draws of the full data in that file."""
    import arviz

    from benchmarks.scaling import measured

    draws = {"fit": arviz.from_netcdf(fit)} if fit else {}
    found = measured(chains // EACH, EACH, PARAMETERS, precision=precision, **draws)
    return [answer | _of_device() for answer in found]


def by_paper(chains: int, precision: str) -> list[dict[str, Any]]:
    import numpy as np

    from benchmarks import loops
    from benchmarks.scaling import regression

    problem = regression(chains // EACH, PARAMETERS)
    (model,) = problem.models.values()
    found = loops.by_paper(problem, model, double=precision == "float64")
    elpd, mcse = loops.elpd(found.log_score)
    answer = {"seconds": found.first, "elpd": elpd.sum(), "mcse": float(np.hypot.reduce(mcse))}
    return [answer | _of_device()]


def fit_on_cpu(file: str) -> list[dict[str, Any]]:
    """Draws of the full data, for `by_pcv`."""
    import pcv
    from benchmarks.problems import InNumPyro, write
    from benchmarks.scaling import regression

    problem = regression(2, PARAMETERS)
    (model,) = problem.models.values()
    begun = time.perf_counter()
    made = pcv.from_numpyro(lambda **d: write(InNumPyro(), model, d), problem.table())
    pcv.fit(made, progress=False).to_netcdf(file)
    return [{"seconds": time.perf_counter() - begun} | _of_device()]


def _of_device() -> dict[str, Any]:
    """Which it is, and the largest memory that was in use."""
    import jax

    (device, *_) = jax.devices()
    said = device.memory_stats() or {}
    return {"device": device.device_kind, "peak_bytes": said.get("peak_bytes_in_use")}


def main() -> None:
    until = time.monotonic() + SECONDS
    rows: list[dict[str, Any]] = []

    def measure(what: str, call: str, env: Mapping[str, str] | None = None, **at: Any) -> None:
        left = until - time.monotonic()
        if left < 5:
            print(f"{what} {at}: no time left", flush=True)
            return
        found = alone(f"gpu.{call}", f"{what} {at}", left, env)
        for state, answer in zip(("cold", "second call"), found):
            rows.append({"problem": what, "state": state, **at, **answer})
            print(rows[-1], flush=True)

    for chains in CHAINS:
        for precision in ("float32", "float64"):
            at = {"chains": chains, "precision": precision}
            measure("pcv", f"by_pcv({chains}, {precision!r})", **at)
            measure("paper", f"by_paper({chains}, {precision!r})", **at)
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "fit.nc")
        measure("fit", f"fit_on_cpu({file!r})", {"JAX_PLATFORMS": "cpu"})
        at = {"chains": CHAINS[1], "precision": "float64"}
        measure("pcv, fit on the CPU", f"by_pcv({CHAINS[1]}, 'float64', {file!r})", **at)
    print(save("gpu", rows))


if __name__ == "__main__":
    main()
