"""Our counterparts of the paper's numbers: differences, captions, posterior means, run times."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from paper.figures import Example, mixing_after, pathologies
from paper.parts import GROWTH, PARTS
from paper.published import DIFFERENCES, MEANS, MIXING, RUN_TIMES, Mean
from pcv.analysis import comparison, results
from pcv.analysis.comparison import Scores
from pcv.analysis.diagnostics import BENCHMARK_LEVEL
from pcv.report.plots import GOOD_RHAT

SETTLED = 0.01
"""distance from its last value within which a probability has settled"""


class Estimate(NamedTuple):
    """A difference, A minus B."""

    value: float
    se: float
    mcse: float
    p_better: float
    mcse_se: float
    """Monte Carlo standard error of the SE"""
    mcse_is_bound: bool = False
    """whether `mcse` is a lower bound, since some fold's predictive has a heavy tail"""


def estimate(name: str, example: Example) -> Estimate:
    """The difference of joint scores, A minus B, whatever the config's comparator.

    Args:
        name: of the run, or `GROWTH` for example 4 as the paper sums it.
        example: its results.
    """
    return growth_estimate(example) if name == GROWTH else _estimate(joint_scores(example))


def growth_estimate(example: Example) -> Estimate:
    r"""The difference of example 4 as the paper sums it, from densities of growth.

    .. math:: \log p(g_t) = \log p(L_t) + \log L_{t-s}

    with s = 1 in A and 12 in B: every fold's difference changes by :math:`\log L_{t-1}/L_{t-12}`.
    """
    level = np.log(example.data["outbound"].to_numpy())
    at = example.test[:, 0]
    return _estimate(
        [
            scores._replace(elpd=scores.elpd + level[at - span])
            for scores, span in zip(joint_scores(example), (1, 12), strict=True)
        ]
    )


def joint_scores(example: Example) -> list[Scores]:
    """Joint scores of models A and B."""
    return [results.scores(folds, "joint", "", "") for folds in example.diagnostics.values()]


def _estimate(scores: Sequence[Scores]) -> Estimate:
    r"""The difference, with the error of its SE over T folds by the delta method:

    .. math:: \mathrm{MCSE}_{\mathrm{SE}}^2 = \left(\frac{T}{(T - 1) \, \mathrm{SE}}\right)^2
              \sum_k (\Delta_k - \bar\Delta)^2 \, \mathrm{MCSE}_k^2
    """
    a, b = (s.model for s in scores)
    found = comparison.compare(scores, reference=b)
    i, folds = found.models.index(a), found.n_folds
    away = found.elpd_diff_folds[i] - found.elpd_diff_folds[i].mean()
    of_fold = np.hypot(*(s.mcse for s in scores))
    mcse_se = folds / (folds - 1) / found.dse[i] * np.sqrt(np.sum((away * of_fold) ** 2))
    values = (found.elpd_diff[i], found.dse[i], found.mcse_diff[i], found.p_better[i], mcse_se)
    value, dse, mcse, p_better, of_se = map(float, values)
    return Estimate(value, dse, mcse, p_better, of_se, bool(found.mcse_diff_is_bound[i]))


class Judged(NamedTuple):
    """R-hat max and its benchmark."""

    rhat_max: float
    share: float
    """share of the benchmark's replicates that reach it"""

    @property
    def mixed(self) -> bool:
        """Whether chains have mixed."""
        return self.share > BENCHMARK_LEVEL


class Ess(NamedTuple):
    """ESS of the difference, and the least and greatest ESS of folds."""

    difference: float
    least: float
    most: float


class Captioned(NamedTuple):
    """What the paper's captions report of an example; lengths in draws per chain."""

    draws: int
    above: int
    """last length with the largest R-hat above 1.01, 0 if there is none"""
    always: bool
    """whether it is above 1.01 at every length"""
    rhat_max: float
    """after all draws"""
    settled: int
    """length after which Pr(A better) stays within a percentage point of its last value"""
    after: dict[int, Judged]
    """at those of the paper's lengths that our run reaches"""
    planted: dict[str, Judged]
    """figure 5, example 1 only"""
    ess: Ess | None
    """figure 2, example 1 only"""


def captioned(example: Example, seed: int) -> Captioned:
    """Our counterpart of the paper's captions.

    Args:
        example: of an experiment that the paper has.
        seed: of the benchmarks' replicates.
    """
    rhat = np.max([d["rhat_at"].max("fold") for d in example.diagnostics.values()], axis=0)
    draws = example.comparison["point"].to_numpy()
    above = draws[~(rhat <= GOOD_RHAT)]
    p_better = _p_better_at(example)
    unsettled = np.flatnonzero(~(np.abs(p_better - p_better[-1]) <= SETTLED))
    planted, ess = {}, None
    if example.name == "example1":
        runs = list(pathologies(example, seed).items())[1:]
        planted = {title: _judged(run) for title, run in runs}
        folds = np.concatenate([d["ess_at"][:, -1] for d in example.diagnostics.values()])
        difference = example.comparison["ess_diff_at"][:, -1].max()
        ess = Ess(float(difference), float(folds.min()), float(folds.max()))
    return Captioned(
        draws=int(draws[-1]),
        above=int(above[-1]) if above.size else 0,
        always=above.size == draws.size,
        rhat_max=float(rhat[-1]),
        settled=int(draws[min(unsettled[-1] + 1, draws.size - 1)] if unsettled.size else draws[0]),
        after={
            length: _judged(mixing_after(example, seed, length))
            for length in MIXING[example.name].mixed
            if length <= draws[-1]
        },
        planted=planted,
        ess=ess,
    )


def _judged(run: xr.Dataset) -> Judged:
    return Judged(float(run["rhat_max"]), float(run["benchmark_share"]))


def _p_better_at(example: Example) -> np.ndarray:
    """Pr(A better) over draws, from whichever model is not the comparator."""
    a, b = example.settings.models
    at = example.comparison["p_better_at"].isel(kind=0)
    of_a = at.sel(model=a).to_numpy()
    return 1 - at.sel(model=b).to_numpy() if np.isnan(of_a).all() else of_a


def flagged(example: Example) -> tuple[int, int]:
    """Number of flagged folds of both models, and of all folds."""
    of_models = example.diagnostics.values()
    bad = sum(int((d["verdict"] != "ok").sum()) for d in of_models)
    return bad, sum(d.sizes["fold"] for d in of_models)


class Moments(NamedTuple):
    """Moments of a parameter in a full-data posterior."""

    mean: float
    sd: float
    mcse: float


def printed_means(
    names: Sequence[str], examples: Mapping[str, Example]
) -> list[tuple[Mean, Moments]]:
    """Posterior means printed by the authors, and ours, of experiments that were run."""
    return [
        (mean, Moments(*(float(posterior[name]) for name in Moments._fields)))
        for mean in MEANS
        if mean.experiment in names and mean.experiment in examples
        for fits in [list(examples[mean.experiment].means.values())]
        for posterior in [fits[mean.model].sel(parameter=mean.variable)]
    ]


def summary(posterior: xr.Dataset, wanted: Sequence[str]) -> xr.Dataset:
    """Mean, standard deviation and MCSE of parameters, such as "mu" or "beta[1]".

    Args:
        posterior: draws (chain, draw[, index]).
        wanted: names of parameters.

    >>> draws = np.random.default_rng(1).normal(3, 1, (4, 500, 2))
    >>> found = summary(xr.Dataset({"beta": (("chain", "draw", "k"), draws)}), ["beta[1]"])
    >>> float(found["mean"].sel(parameter="beta[1]").round(1))
    3.0
    """
    from arviz_stats.base import array_stats

    found = {}
    for parameter in wanted:
        name, _, index = parameter.partition("[")
        x = posterior[name].to_numpy()
        x = x[..., int(index[:-1])] if index else x
        mcse = array_stats.mcse(x, chain_axis=0, draw_axis=1, method="mean")
        found[parameter] = (x.mean(), x.std(ddof=1), float(mcse))
    values = np.reshape(list(found.values()), (-1, 3))
    return xr.Dataset(
        {name: ("parameter", values[:, i]) for i, name in enumerate(("mean", "sd", "mcse"))},
        {"parameter": list(found)},
    )


def as_json(
    examples: Mapping[str, Example], captions: Mapping[str, Captioned], seed: int
) -> dict[str, Any]:
    """All numbers of the page, the paper's and ours, for JSON.

    Args:
        examples: the experiments that were run, by name.
        captions: our counterparts of the captions, by example.
        seed: of the runs.
    """
    times = {table.experiment: table for table in RUN_TIMES.values()}
    parts = {
        part.experiment: {
            "paper": {
                "difference": DIFFERENCES[part.experiment],
                "captions": MIXING[part.experiment],
                "times": times.get(part.experiment),
            },
            "runs": {
                name: _run(name, example)
                for name in part.variants
                if (example := examples.get(source(name)))
            },
            "captions": captions.get(part.experiment),
            "means": [
                {**mean._asdict(), "ours": ours}
                for mean, ours in printed_means(list(part.variants), examples)
            ],
        }
        for part in PARTS
    }
    return {"seed": seed, **_plain(parts)}


def source(name: str) -> str:
    """The experiment behind a row of the paper's differences.

    >>> source(GROWTH), source("example2_plain")
    ('example4', 'example2_plain')
    """
    return "example4" if name == GROWTH else name


def _run(name: str, example: Example) -> dict[str, Any]:
    bad, folds = flagged(example)
    cv = example.settings.cv
    return {
        **estimate(name, example)._asdict(),
        "flagged": bad,
        "folds": folds,
        "chains": cv.chains,
        "warmup": cv.warmup,
        "draws": cv.draws,
        "seconds": example.seconds,
        "device": example.device,
        "marks": list(example.marks),
    }


def _plain(x: Any) -> Any:
    """Nested named tuples as dictionaries; non-finite numbers as None."""
    if isinstance(x, tuple) and hasattr(x, "_asdict"):
        return _plain(x._asdict())
    if isinstance(x, dict):
        return {name: _plain(value) for name, value in x.items()}
    if isinstance(x, list):
        return list(map(_plain, x))
    return None if isinstance(x, float) and not np.isfinite(x) else x
