"""Tables of the paper's numbers beside ours, with where they differ and why."""

from collections.abc import Mapping

import numpy as np

from paper.figures import Example
from paper.numbers import (
    SETTLED,
    Captioned,
    Estimate,
    Judged,
    estimate,
    flagged,
    joint_scores,
    printed_means,
    source,
)
from paper.parts import OTHER_DATA, WHY, Part
from paper.published import (
    DIFFERENCES,
    MIXING,
    NOT_CONVERGED,
    RUN_TIMES,
    Difference,
    Inference,
)
from pcv.analysis import comparison
from pcv.analysis.diagnostics import BENCHMARK_LEVEL
from pcv.analysis.results.numbers import percent, typeset
from pcv.base.errors import PcvError
from pcv.report import Cells, Table
from pcv.report.plots import GOOD_RHAT

ALIKE, SOONER, LATER = "as in the paper", "sooner", "not as in the paper: see the report of the run"
MISSED = "not by R-hat, which compares means, and one chain of one fold moves its mean too little"
READING, READING_PR = 0.5, 0.01
"""reading error of plots: Δ and SE (nats), and probabilities"""


def refusal(example: Example) -> str:
    """The error of `pcv.analysis.comparison.compare` for models scored on their own growth."""
    scores = [
        scores._replace(outcome=f"growth over {span}")
        for scores, span in zip(joint_scores(example), ("a month", "a year"), strict=True)
    ]
    try:
        comparison.compare(scores)
    except PcvError as error:
        return str(error)
    raise AssertionError("scores of different outcomes were compared")


def difference_table(part: Part, examples: Mapping[str, Example]) -> Table:
    """The paper's difference above ours, for all variants of an example."""
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
        if source(name) not in examples:
            rows.append((f"Ours: {how}", "–", "–", "–", "–", "", "not run"))
            flags.append(True)
            continue
        example = examples[source(name)]
        ours = estimate(name, example)
        bad, count = flagged(example)
        rows.append(
            (
                f"Ours: {how}",
                typeset(ours.value, ours.mcse),
                typeset(ours.se, ours.se),
                "> " * ours.mcse_is_bound + typeset(ours.mcse, ours.mcse),
                percent(ours.p_better),
                f"{bad} of {count}",
                against(name, ours, paper, bad),
            )
        )
        flags.append(bad > 0)
    note = (
        "SE: error from limited data. MCSE: error from limited draws. Rows of own draws alone are "
        "estimated as in the paper, all others from both sides (Bennett's estimate). Folds "
        "flagged: of both models together; the report of the run says which and why. Δ, SE and Pr "
        "are compared at "
        "twice the combined Monte Carlo error (that of the paper's SE and Pr, which is not given, "
        f"assumed equal to ours), plus {READING:g} nats or {100 * READING_PR:g} percentage point "
        "for reading the plot."
    )
    notes = [note] + [f"The paper's text: {paper.text}."] * bool(paper.text)
    return Table("Difference in elpd, joint log score", head, rows, flags, notes)


def against(name: str, ours: Estimate, paper: Difference, bad: int) -> str:
    """Which numbers differ from the paper's plot by more than its reading error, and why.

    >>> ours = Estimate(value=14.2, se=8.5, mcse=0.1, p_better=0.95, mcse_se=0.1)
    >>> against("example2", ours, Difference(14.0, 8.6, 0.5, 0.95, 6), bad=0)
    'Δ, SE and Pr within Monte Carlo error'
    >>> against("example2", ours, Difference(11.3, 8.6, 0.5, 0.92, 6), bad=0)[:34]
    'Δ differs by 2.90, Pr by 3 points.'
    """
    caution = " Our MCSE is too small where folds are flagged." if bad else ""
    if name in OTHER_DATA:
        return f"{WHY[name]}{caution}"
    z = ours.value / ours.se
    density = float(np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi))
    mcse_pr = density / ours.se * float(np.hypot(ours.mcse, z * ours.mcse_se))
    gaps = {
        "Δ": (ours.value - paper.value, float(np.hypot(ours.mcse, paper.mcse)), READING),
        "SE": (ours.se - paper.se, np.sqrt(2) * ours.mcse_se, READING),
        "Pr": (ours.p_better - paper.p_better, np.sqrt(2) * mcse_pr, READING_PR),
    }
    off = {
        what: f"{100 * gap:.0f} points" if what == "Pr" else typeset(gap, mcse)
        for what, (gap, mcse, read) in gaps.items()
        if abs(gap) > 2 * mcse + read
    }
    if not off:
        return "Δ, SE and Pr within Monte Carlo error"
    said = ", ".join(f"{what} by {gap}" for what, gap in off.items()).replace(" ", " differs ", 1)
    return f"{said}. {WHY[name]}{caution}"


def mean_table(part: Part, examples: Mapping[str, Example]) -> Table | None:
    """Full-data posterior means printed by the authors, beside ours."""
    head = ("", "authors, printed", "ours", "posterior SD", "MCSE", "against the authors")
    rows, flags = [], []
    for mean, (value, sd, mcse) in printed_means(list(part.variants), examples):
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
                typeset(value, mcse),
                typeset(sd, sd),
                typeset(mcse, mcse),
                "within Monte Carlo error" if agrees else why,
            )
        )
        flags.append(not agrees)
    if not rows:
        return None
    note = "Compared at three Monte Carlo errors, theirs (not printed) assumed equal to ours."
    return Table(
        "Full-data posterior means, priors of the authors' code", head, rows, flags, [note]
    )


def mixing_table(example: Example, found: Captioned) -> Table:
    """The paper's captions on R-hat, its benchmark and when answers settle, beside ours.

    Args:
        example: of an experiment that the paper has.
        found: our counterpart of the captions.
    """
    said, last = MIXING[example.name], found.draws
    how_long = "never" if not found.above else f"until {found.above:,} of {last:,} draws"
    if found.above == last:
        how_long = f"{'for all' if found.always else 'still after'} {last:,} draws"
    against = ALIKE if found.above >= said.above_draws else SOONER
    too_short = f"ours makes {last:,} draws"
    rows: list[Cells] = [
        (
            f"Largest R-hat above {GOOD_RHAT} (figure {said.rhat_figure})",
            said.above,
            f"{how_long}, in the end {found.rhat_max:.3f}",
            too_short if found.above == last < said.above_draws else against,
        )
    ]
    for length, mixed in said.mixed.items():
        what = f"R-hat max after {length:,} draws (figure {said.benchmark_figure})"
        theirs = "mixed" if mixed else "not mixed"
        if length not in found.after:
            rows.append((what, theirs, "", too_short))
            continue
        ours = found.after[length]
        rows.append(
            (
                what,
                theirs,
                f"{judged(ours)}: {'mixed' if ours.mixed else 'not mixed'}",
                ALIKE if ours.mixed == mixed else SOONER if ours.mixed else LATER,
            )
        )
    figure = DIFFERENCES[example.name].figure
    rows.append(
        (
            f"Pr(A\u00a0≻\u00a0B) settles (figure {figure})",
            said.settles,
            f"after {found.settled:,} draws",
            too_short
            if found.settled == last < said.settles_by
            else ALIKE
            if found.settled <= said.settles_by
            else LATER,
        )
    )
    rows += map(_planted, found.planted, found.planted.values())
    if found.ess:
        ess = found.ess
        rows.append(
            (
                "ESS of the difference and of the folds (figure 2)",
                "within the range of the folds",
                f"{ess.difference:,.0f}, folds {ess.least:,.0f} to {ess.most:,.0f}",
                ALIKE if ess.least <= ess.difference <= ess.most else LATER,
            )
        )
    head = ("", "paper", "ours", "against the paper")
    notes = [
        "The paper: from its captions. Ours: R-hat of the joint log score; mixed: more than "
        f"{BENCHMARK_LEVEL:.0%} of the benchmark's replicates reach R-hat max; settled: within "
        f"{100 * SETTLED:g} percentage point of its last value."
    ]
    if any(row[-1] == SOONER for row in rows):
        notes.append(
            "Both start at full-data draws with the full-data kernel. Ours differ by a dense "
            "metric, steps tuned for the score and, except in example 4, by integrating out the "
            "left-out group's effects; which of these makes R-hat fall sooner is not known."
        )
    return Table("Mixing", head, rows, [row[-1] == LATER for row in rows], notes)


def judged(found: Judged) -> str:
    """R-hat max and its benchmark in words.

    >>> judged(Judged(rhat_max=1.02, share=0.4))
    '1.020, reached by 40% of the benchmark'
    """
    return f"{found.rhat_max:.3f}, reached by {percent(found.share)} of the benchmark"


def _planted(title: str, found: Judged) -> Cells:
    """Figure 5: whether the benchmark detects a planted pathology.

    A stuck chain is named whatever the benchmark says (`pcv.analysis.verdicts`).
    """
    said, against = "noticed", ALIKE
    if found.mixed:
        by_name = "stuck" in title
        said = "not noticed; named as one that never moved" if by_name else "not noticed"
        against = MISSED if by_name else LATER
    return f"With {title} (figure 5)", "noticed", f"{judged(found)}: {said}", against


def time_table(number_: int, examples: Mapping[str, Example]) -> Table:
    """Table 2, 3 or 4: each row of the paper, with ours below it."""
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
        f"{example.own_kernels} of {2 * folds} folds were adapted: the seconds of the warmup "
        "include some 325 further steps per chain, and a second warmup."
    )
    lengths = (cv.warmup, cv.draws), (table.folds.warmup, table.folds.draws)
    ours, theirs = (f"{warmup:,} + {draws:,}" for warmup, draws in lengths)
    others = f", {ours} draws per chain of a fold against {theirs}" if ours != theirs else ""
    notes = [
        "Warmup and draws are per chain; seconds are wall-clock time and include compilation. Ours "
        "for all folds are sums over the two models' jobs, which may run side by side.",
        f"Run times differ from the paper's: another device, another kernel{others}.",
        f"The paper's text: {table.text}; fitting every fold in turn would take "
        f"{table.brute_force}, by its estimate.",
        *([own] if example.own_kernels else []),
    ]
    return Table(f"Table {number_}. {table.caption}", head, rows, [False] * len(rows), notes)
