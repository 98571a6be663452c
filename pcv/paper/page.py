"""The page that sets the paper's numbers beside ours: results in, tables and HTML out."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from pcv import comparison, results
from pcv.comparison import Scores
from pcv.diagnostics import BENCHMARK_LEVEL
from pcv.errors import PcvError
from pcv.paper.figures import FIGURES, Example, mixing_after, pathologies
from pcv.paper.published import (
    DIFFERENCES,
    MEANS,
    MIXING,
    NOT_CONVERGED,
    RUN_TIMES,
    Difference,
    Inference,
)
from pcv.plots import GOOD_RHAT, number, percent
from pcv.report import Cells, Table, inline, template


class Part(NamedTuple):
    """One of the paper's examples."""

    experiment: str
    title: str
    text: str
    variants: dict[str, str]
    """our runs of it: experiment → how it is done, the paper's way first"""


GROWTH = "example4_growth"
"""example 4 with its densities as the paper takes them: another row, not another experiment"""

PARTS = [
    Part(
        "example1",
        "Example 1: grouped Gaussian regression",
        "50 simulated groups of 5, one left out at a time. A has all four covariates, B three. The "
        "paper's data cannot be had: ours are simulated anew, by a fixed key, so that differences "
        "to the paper are those of another data set from the same source.",
        {
            "example1": "paper's priors, α of the left-out group integrated out",
            "example1_authors": "authors' code: σ with scale 10, α of the left-out group drawn",
        },
    ),
    Part(
        "example2",
        "Example 2: rats",
        "30 rats weighed five times, one rat left out at a time. A has a slope for each rat, B a "
        "common one.",
        {
            "example2": "paper's priors, α and β of the left-out rat integrated out",
            "example2_plain": "paper's priors, α and β of the left-out rat drawn",
            "example2_authors": "authors' code: its priors, α and β of the left-out rat drawn",
        },
    ),
    Part(
        "example3",
        "Example 3: radon",
        "12,573 homes in 386 counties, one county left out at a time. A knows the floor of the "
        "measurement, B does not.",
        {
            "example3": "paper's priors, α of the left-out county integrated out",
            "example3_authors": "authors' code: priors on σ, log_uppm, α of the left-out county "
            "drawn",
            "example3_cleaned": "as the first, without homes of unknown floor (code 9), all upper "
            "floors as one",
        },
    ),
    Part(
        "example4",
        "Example 4: air passengers",
        "420 months, 1985 to 2019. A models growth from month to month by 12 lags and the seasons, "
        "B growth from year to year by 3 lags. Both are scored on the number of passengers, with "
        "the Jacobian of growth: their densities of growth are of different variables.",
        {
            "example4": "one month ahead, expanding window; density of passengers",
            GROWTH: "the same run, densities of growth: what the paper adds up",
            "example4_blocks": "hv-block: 3 months tested, 15 on each side left out besides",
        },
    ),
]

WHY = {
    "example1": "Other data: this data set is simulated anew.",
    "example1_authors": "Other data: this data set is simulated anew.",
    "example2": "The paper draws α and β of the left-out rat: one rat's average then hangs on few "
    "draws, and both its value and its MCSE are off.",
    "example2_plain": "Few draws carry the average over the left-out rat's α and β: the MCSE, here "
    "and in the paper, is too small.",
    "example2_authors": "Few draws carry the average over the left-out rat's α and β: repeated "
    "runs differ by far more than their MCSE says, here and in the paper.",
    "example3": "The paper's plot is of the authors' code: other priors, a second covariate, and α "
    "of the left-out county drawn.",
    "example3_authors": "Few draws carry the average over the left-out county's α, and the "
    "authors' fit of A had not converged (R-hat 1.07).",
    "example3_cleaned": "Other data: the paper takes the code 9 of an unknown floor as a number. "
    "A county without other homes scores 0 in both models, and is flagged for that.",
    "example4": "The paper subtracts a density of growth over a year from one of growth over a "
    "month; the next row undoes the Jacobian.",
    GROWTH: "394 folds here, 395 there, and the paper's number is read off a plot.",
    "example4_blocks": "Another question: months in the middle of the series, each in three "
    "blocks, so that Δ counts it three times; blocks overlap, so that the SE is too small.",
}
"""why a run differs from the paper's plot, where it does"""
OTHER_DATA = ("example1", "example1_authors")
ALIKE, SOONER, LATER = "as in the paper", "sooner", "not as in the paper: see the report of the run"
READING, READING_PR = 0.5, 0.01
"""how far a number that was read off a plot may be off: Δ and SE (nats), and a probability"""


class Estimate(NamedTuple):
    """A difference of A to B."""

    value: float
    se: float
    mcse: float
    p_better: float
    mcse_se: float
    """Monte Carlo standard error of the SE"""


def estimate(example: Example) -> Estimate:
    """The difference of joint scores, A minus B, whatever the config's comparator."""
    return _estimate(_scores(example))


def growth_estimate(example: Example) -> Estimate:
    r"""The difference of example 4 as the paper adds it up: of densities of growth.

    .. math:: \log p(g_t) = \log p(L_t) + \log L_{t-s}

    with s = 1 in A and 12 in B: every fold's difference changes by :math:`\log L_{t-1}/L_{t-12}`.
    """
    level = np.log(example.data["outbound"].to_numpy())
    at = example.test[:, 0]
    return _estimate(
        [
            scores._replace(elpd=scores.elpd + level[at - span])
            for scores, span in zip(_scores(example), (1, 12), strict=True)
        ]
    )


def _scores(example: Example) -> list[Scores]:
    return [results.scores(folds, "joint", "", "") for folds in example.diagnostics.values()]


def _estimate(scores: Sequence[Scores]) -> Estimate:
    r"""The difference, and by the delta method the error of its SE over T folds:

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
    return Estimate(*map(float, values))


def refusal(example: Example) -> str:
    """What `pcv.comparison.compare` says to models scored on their own scales of growth."""
    scores = [
        scores._replace(outcome=f"growth over {span}")
        for scores, span in zip(_scores(example), ("a month", "a year"), strict=True)
    ]
    try:
        comparison.compare(scores)
    except PcvError as error:
        return str(error)
    raise AssertionError("scores of different outcomes were compared")


def difference_table(part: Part, examples: Mapping[str, Example]) -> Table:
    """The paper's difference above ours, of all variants of an example."""
    paper = DIFFERENCES[part.experiment]
    head: Cells = (
        "",
        "Δ\u00a0=\u00a0A\u00a0−\u00a0B",
        "SE",
        "MCSE",
        "Pr(A\u00a0≻\u00a0B)",
        "folds flagged",
    )
    head += ("against the paper",)
    rows = [
        (
            f"Paper, plotted (figure {paper.figure})",
            f"{paper.value:g}",
            f"{paper.se:g}",
            f"{paper.mcse:g}",
            f"{100 * paper.p_better:.0f}%",
            "",
            "",
        )
    ]
    flags = [False]
    for name, how in part.variants.items():
        source = "example4" if name == GROWTH else name
        if source not in examples:
            rows.append((f"Ours: {how}", "–", "–", "–", "–", "", "not run"))
            flags.append(True)
            continue
        example = examples[source]
        ours = growth_estimate(example) if name == GROWTH else estimate(example)
        flagged = sum(int((d["verdict"] != "ok").sum()) for d in example.diagnostics.values())
        count = sum(d.sizes["fold"] for d in example.diagnostics.values())
        rows.append(
            (
                f"Ours: {how}",
                number(ours.value, ours.mcse),
                number(ours.se, ours.se),
                number(ours.mcse, ours.mcse),
                percent(ours.p_better),
                f"{flagged} of {count}",
                against(name, ours, paper, flagged),
            )
        )
        flags.append(flagged > 0)
    note = (
        "SE: what the limited data leave open. MCSE: what the limited draws add. Folds flagged: of "
        "both models together; the report of the run says which and why. Δ, SE and Pr are judged "
        "at twice both Monte Carlo errors (those of the paper's SE and Pr, which it does not have, "
        f"taken to be like ours), and {READING:g} nats or {100 * READING_PR:g} percentage point "
        "for reading its plot."
    )
    notes = [note] + [f"The paper's text: {paper.text}."] * bool(paper.text)
    return Table("Difference in elpd, joint log score", head, rows, flags, notes)


def against(name: str, ours: Estimate, paper: Difference, flagged: int) -> str:
    """Which numbers differ from the paper's plot by more than can be read off it, and why?

    >>> ours = Estimate(value=14.2, se=8.5, mcse=0.1, p_better=0.95, mcse_se=0.1)
    >>> against("example2", ours, Difference(14.0, 8.6, 0.5, 0.95, 6), flagged=0)
    'Δ, SE and Pr within Monte Carlo error'
    >>> against("example2", ours, Difference(11.3, 8.6, 0.5, 0.92, 6), flagged=0)[:34]
    'Δ differs by 2.90, Pr by 3 points.'
    """
    if name in OTHER_DATA:
        return WHY[name]
    z = ours.value / ours.se
    density = float(np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi))
    mcse_pr = density / ours.se * float(np.hypot(ours.mcse, z * ours.mcse_se))
    gaps = {
        "Δ": (ours.value - paper.value, float(np.hypot(ours.mcse, paper.mcse)), READING),
        "SE": (ours.se - paper.se, np.sqrt(2) * ours.mcse_se, READING),
        "Pr": (ours.p_better - paper.p_better, np.sqrt(2) * mcse_pr, READING_PR),
    }
    off = {
        what: f"{100 * gap:.0f} points" if what == "Pr" else number(gap, mcse)
        for what, (gap, mcse, read) in gaps.items()
        if abs(gap) > 2 * mcse + read
    }
    if not off:
        return "Δ, SE and Pr within Monte Carlo error"
    said = ", ".join(f"{what} by {gap}" for what, gap in off.items()).replace(" ", " differs ", 1)
    caution = " Our MCSE is too small where folds are flagged." if flagged else ""
    return f"{said}. {WHY[name]}{caution}"


def mean_table(part: Part, examples: Mapping[str, Example]) -> Table | None:
    """Full-data posterior means as the authors printed them, beside ours."""
    head = ("", "authors, printed", "ours", "posterior SD", "MCSE", "against the authors")
    rows, flags = [], []
    for mean in MEANS:
        if mean.experiment not in part.variants or mean.experiment not in examples:
            continue
        fits = examples[mean.experiment].means
        posterior = list(fits.values())[mean.model].sel(parameter=mean.variable)
        value, sd, mcse = (float(posterior[name]) for name in ("mean", "sd", "mcse"))
        rounding = 0.5 * 10.0**-mean.decimals
        agrees = abs(value - mean.value) <= rounding + 3 * np.sqrt(2) * mcse
        off = abs(value - mean.value) / (np.sqrt(2) * mcse)
        why = "their fit had not converged: R-hat 1.07"
        if (mean.experiment, mean.model) != NOT_CONVERGED:
            why = f"off by {off:.1f} Monte Carlo errors; theirs may be larger than ours"
        rows.append(
            (
                f"{'AB'[mean.model]}: {mean.label}",
                f"{mean.value:.{mean.decimals}f}".replace("-", "\N{MINUS SIGN}"),
                number(value, mcse),
                number(sd, sd),
                number(mcse, mcse),
                "within Monte Carlo error" if agrees else why,
            )
        )
        flags.append(not agrees)
    if not rows:
        return None
    note = "Compared at three Monte Carlo errors, theirs (not printed) taken to be like ours."
    return Table(
        "Full-data posterior means, priors of the authors' code", head, rows, flags, [note]
    )


def mixing_table(example: Example, seed: int) -> Table:
    """What the paper's captions say of R-hat and its benchmark, and what ours are.

    Args:
        example: of an experiment that the paper has.
        seed: of the benchmarks' replicates.
    """
    said = MIXING[example.name]
    rhat = np.max([d["rhat_at"].max("fold") for d in example.diagnostics.values()], axis=0)
    draws = example.comparison["point"].to_numpy()
    last, above = draws[-1], draws[~(rhat <= GOOD_RHAT)]
    until = above[-1] if above.size else 0
    how_long = "never" if not until else f"until {until:,} of {last:,} draws"
    if until == last:
        how_long = f"{'for all' if above.size == draws.size else 'still after'} {last:,} draws"
    against = ALIKE if until >= said.above_draws else SOONER
    rows: list[Cells] = [
        (
            f"Largest R-hat above {GOOD_RHAT} (figure {said.rhat_figure})",
            said.above,
            f"{how_long}, in the end {rhat[-1]:.3f}",
            f"ours makes {last:,} draws" if until == last < said.above_draws else against,
        )
    ]
    for length, mixed in said.mixed.items():
        what = f"R-hat max after {length:,} draws (figure {said.benchmark_figure})"
        theirs = "mixed" if mixed else "not mixed"
        if length > last:
            rows.append((what, theirs, "", f"ours makes {last:,} draws"))
            continue
        found, has = judged(mixing_after(example, seed, length))
        rows.append(
            (
                what,
                theirs,
                f"{found}: {'mixed' if has else 'not mixed'}",
                ALIKE if has == mixed else SOONER if has else LATER,
            )
        )
    if example.name == "example1":
        rows += [*_planted(example, seed), _ess_row(example)]
    head = ("", "paper", "ours", "against the paper")
    notes = [
        "The paper's are the words of its captions. Ours: R-hat of the joint log score; mixed: "
        f"more than {BENCHMARK_LEVEL:.0%} of the benchmark's replicates reach R-hat max."
    ]
    if any(row[-1] == SOONER for row in rows):
        notes.append(
            "Both start at full-data draws with the full data's kernel. Ours differ from the "
            "paper's in a dense metric, steps tuned for the score, and, but for example 4, in "
            "integrating the left-out group's effects out of it; which of these makes R-hat fall "
            "sooner was not looked into."
        )
    return Table("Mixing", head, rows, [row[-1] == LATER for row in rows], notes)


def judged(run: xr.Dataset) -> tuple[str, bool]:
    """R-hat max beside its benchmark in words, and whether they say that chains have mixed.

    >>> run = xr.Dataset({"rhat_max": 1.02, "benchmark_share": 0.4})
    >>> judged(run)
    ('1.020, reached by 40% of the benchmark', True)
    """
    share = float(run["benchmark_share"])
    words = f"{float(run['rhat_max']):.3f}, reached by {percent(share)} of the benchmark"
    return words, share > BENCHMARK_LEVEL


def _planted(example: Example, seed: int) -> list[Cells]:
    """Figure 5: does the benchmark notice the planted pathologies?"""
    rows: list[Cells] = []
    for title, run in list(pathologies(example, seed).items())[1:]:
        found, mixed = judged(run)
        rows.append(
            (
                f"With {title} (figure 5)",
                "noticed",
                f"{found}: {'not noticed' if mixed else 'noticed'}",
                LATER if mixed else ALIKE,
            )
        )
    return rows


def _ess_row(example: Example) -> Cells:
    """Figure 2: the ESS of the difference lies among those of the folds."""
    total = float(example.comparison["ess_diff_at"][:, -1].max())
    folds = np.concatenate([d["ess_at"][:, -1] for d in example.diagnostics.values()])
    inside = folds.min() <= total <= folds.max()
    return (
        "ESS of the difference and of the folds (figure 2)",
        "within the range of the folds",
        f"{total:,.0f}, folds {folds.min():,.0f} to {folds.max():,.0f}",
        ALIKE if inside else LATER,
    )


def time_table(number_: int, examples: Mapping[str, Example]) -> Table:
    """Table 2, 3 or 4: the paper's rows, and ours below each."""
    table = RUN_TIMES[number_]
    example = examples[table.experiment]
    (a, b), fit, cv = example.settings.models, example.settings.fit, example.settings.cv
    folds = len(example.test)
    head: Cells = ("", "chains", "posteriors", "warmup", "draws", "warmup, s", "sampling, s")
    head += ("both, s", "on")

    def row(what: str, run: Inference) -> tuple[str, ...]:
        counts = (run.chains, run.posteriors, run.warmup, run.draws)
        seconds = (*run.seconds, sum(run.seconds))
        return (
            f"{what}: paper",
            *(f"{n:,}" for n in counts),
            *(f"{s:.1f}" for s in seconds),
            table.device if run is table.folds else "CPU",
        )

    def fitted(what: str, model: str) -> tuple[str, ...]:
        counts = (fit.chains, 1, fit.warmup, fit.draws)
        seconds = f"{example.seconds[model]['fit']:.1f}"
        return f"{what}: ours", *(f"{n:,}" for n in counts), "–", "–", seconds, example.device

    warm, drawn = (
        sum(example.seconds[model][stage] for model in (a, b)) for stage in ("warmup", "sample")
    )
    counts = (2 * folds * cv.chains, 2 * folds, cv.warmup, cv.draws)
    rows = [
        row("Full data, A", table.a),
        fitted("Full data, A", a),
        row("Full data, B", table.b),
        fitted("Full data, B", b),
        row("All folds, A and B", table.folds),
        (
            "All folds, A and B: ours",
            *(f"{n:,}" for n in counts),
            *(f"{s:.1f}" for s in (warm, drawn, warm + drawn)),
            example.device,
        ),
    ]
    own = (
        f"{example.own_kernels} of {2 * folds} folds had kernels of their own: some 225 further "
        "steps a chain, and a second warmup, within the seconds of the warmup."
    )
    notes = [
        "Warmup and draws are per chain; seconds are of the wall clock and include compilation. "
        "Ours of all folds are sums over the two models' jobs, which may run side by side.",
        f"The seconds differ from the paper's: another device, other numbers of draws "
        f"({cv.warmup:,} + {cv.draws:,} per chain of a fold against {table.folds.warmup:,} + "
        f"{table.folds.draws:,}), another kernel.",
        f"The paper's text: {table.text}; fitting every fold in turn would take "
        f"{table.brute_force}, by its estimate.",
        *([own] if example.own_kernels else []),
    ]
    return Table(f"Table {number_}. {table.caption}", head, rows, [False] * len(rows), notes)


def html(
    examples: Mapping[str, Example],
    missing: Mapping[str, str],
    figures: Mapping[int, Figure],
    tables: Mapping[int, Table],
    mixing: Mapping[str, Table],
    about: Sequence[str],
) -> str:
    """The page: for each example the paper's numbers beside ours, its figures and its table.

    Args:
        examples: the experiments that were run, by name.
        missing: experiments that were not, and why.
        figures: by the paper's numbers.
        tables: 2 to 4, by the paper's numbers.
        mixing: by the names of the paper's examples.
        about: where and how it was run.
    """
    parts = [
        {
            "part": part,
            "models": list(examples[part.experiment].draws) if part.experiment in examples else [],
            "differences": difference_table(part, examples),
            "means": mean_table(part, examples),
            "mixing": mixing.get(part.experiment),
            "refusal": refusal(examples["example4"])
            if part.experiment == "example4" and "example4" in examples
            else "",
            "runs": [name for name in part.variants if name in examples],
            "missing": [
                (names, coded(why))
                for names, why in by_reason({n: missing[n] for n in part.variants if n in missing})
            ],
            "numbers": [n for n, drawn in FIGURES.items() if drawn.experiment == part.experiment],
            "table": next(
                (
                    tables[n]
                    for n, table in RUN_TIMES.items()
                    if table.experiment == part.experiment and n in tables
                ),
                None,
            ),
        }
        for part in PARTS
    ]
    marks = {name: list(example.marks) for name, example in examples.items() if example.marks}
    return template("paper.html.j2").render(
        parts=parts,
        figures={n: Markup(inline(figure, f"figure_{n:02}")) for n, figure in figures.items()},
        drawn=FIGURES,
        about=about,
        marks=marks,
    )


def by_reason(missing: Mapping[str, str]) -> list[tuple[list[str], str]]:
    """Experiments that were not run, those of one reason together.

    >>> by_reason({"a": "no data", "b": "no such experiment", "c": "no data"})
    [(['a', 'c'], 'no data'), (['b'], 'no such experiment')]
    """
    names: dict[str, list[str]] = {}
    for name, why in missing.items():
        names.setdefault(why, []).append(name)
    return [(together, why) for why, together in names.items()]


def coded(words: str) -> Markup:
    """Words with the commands in them as code.

    >>> coded("give `pcv data <config>` first")
    Markup('give <code>pcv data &lt;config&gt;</code> first')
    """
    return Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", escape(words)))


def table_html(table: Table) -> str:
    """A table as a page of its own."""
    return template("paper_table.html.j2").render(table=table)


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
