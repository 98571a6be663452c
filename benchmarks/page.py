"""The page of measurements, its figures and the README's table: `python -m benchmarks.page`.

From all machines of `benchmarks/results/`; the README has the first one's.
"""

import json
import re
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.bench import RESULTS
from benchmarks.scaling import AXES, slope

ROOT = Path(__file__).parents[1]
TITLES = {
    "rats": "rats, two models",
    "rats_stan": "the same in Stan",
    "grouped": "grouped Gaussian",
    "radon_mn": "radon, Minnesota",
    "radon_us": "radon, US, two models",
    "air": "air passengers, one step ahead",
    "wells": "wells, leave-one-out",
    "counts": "Poisson counts of 400 groups",
}
WAYS = {
    ("pcv", "cold"): ("pcv, first call ever", "#1f5a8a", "o"),
    ("pcv", "warm"): ("pcv, a new process", "#1f5a8a", "s"),
    ("pcv", "second call"): ("pcv, a second call", "#1f5a8a", "D"),
    ("nutpie", "cold"): ("loop of nutpie", "#c2571a", "o"),
    ("numpyro", "cold"): ("loop of NumPyro", "#5b8c3e", "o"),
    ("paper", "cold"): ("the paper's sampler", "#8a5a9c", "o"),
}
NAMES = {"nutpie": "nutpie", "numpyro": "NumPyro", "paper": "paper"}
INTRO = """\
# Measurements

`make bench` times `pcv.cross_validate` beside loops over folds, each in a process of its own,
imports apart: nutpie, which is given every fold's data in turn; NumPyro's NUTS with a mask, a fold
for every core; and a sampler after the paper's appendix D.1 (BlackJAX's HMC, all folds and chains
at once, masks over all units, a diagonal metric). All compile once. Loops take 4 chains of 400
draws, `pcv` its default 8 of 200. Where groups are left out, `pcv` integrates their effects, and
takes the full data's draws as a fold's other side: the same elpd at a smaller Monte Carlo error. So
there are two ratios: of seconds, and of seconds times MCSE², which is of the time to one and the
same error. Loops that take long are timed on some folds, evenly spaced, and counted for all; what
takes minutes to sample is measured once.

The paper's sampler warms up for 1,000 draws, as for the paper's first two examples: its chains
start where the full data placed the effects that are left out, and need long to leave. For the
rats, averages over left-out effects that chains draw depend on few draws: answers differ by more
than their MCSEs say.
"""


def ratio(rows: dict[Any, Any], problem: str, way: str, state: str, by_error: bool) -> str:
    """Of a way's seconds, or seconds times MCSE², to pcv's in the same state."""
    theirs, ours = rows.get((problem, way, state)), rows.get((problem, "pcv", state))
    if theirs is None or ours is None:
        return ""
    found = theirs["seconds"] / ours["seconds"]
    if by_error:
        found *= (_mcse(theirs) / _mcse(ours)) ** 2
    return f"{found:.2g}" if found < 10 else f"{found:,.0f}"


def _mcse(row: dict[str, Any]) -> float:
    return float(np.hypot.reduce([x["mcse"] for x in row["models"].values()]))


def _seconds(rows: dict[Any, Any], *key: str) -> str:
    row = rows.get(key)
    if row is None:
        return ""
    about = "~" if row.get("measured", row["seconds"]) < 0.99 * row["seconds"] else ""
    return about + (f"{row['seconds']:.1f}" if row["seconds"] < 10 else f"{row['seconds']:,.0f}")


def table(known: dict[str, Any], short: bool = False) -> list[str]:
    """Seconds of every problem, and ratios to nutpie's; in short without NumPyro's loop."""
    rows = {(r["problem"], r["way"], r["state"]): r for r in known["folds"]}
    others = ("nutpie", "paper") if short else ("nutpie", "numpyro", "paper")
    names = [NAMES[way] for way in others]
    ratios = ["nutpie / pcv", "in a new process", "at one error"]
    head = ["", "folds", "pcv", "new process", "second call", *names, *ratios]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for problem, title in TITLES.items():
        ours = rows.get((problem, "pcv", "cold"))
        if ours is None:
            continue
        cells = [title, str(len(next(iter(ours["models"].values()))["by_fold"]))]
        cells += [_seconds(rows, problem, "pcv", s) for s in ("cold", "warm", "second call")]
        cells += [_seconds(rows, problem, way, "cold") for way in others]
        cells += [
            ratio(rows, problem, "nutpie", "cold", False),
            ratio(rows, problem, "nutpie", "warm", False),
            ratio(rows, problem, "nutpie", "warm", True)
            or ratio(rows, problem, "nutpie", "cold", True),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def answers(known: dict[str, Any]) -> list[str]:
    """elpd and MCSE of every way, of the folds that all were timed on."""
    head = ["", "model", "folds in common", "pcv", *NAMES.values()]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    rows = {(r["problem"], r["way"]): r for r in known["folds"] if r["state"] == "cold"}
    for problem, title in TITLES.items():
        if (problem, "pcv") not in rows:
            continue
        for name, ours in rows[problem, "pcv"]["models"].items():
            theirs = [rows.get((problem, way)) for way in ("nutpie", "numpyro", "paper")]
            by_fold = [row["models"][name]["by_fold"] if row else {} for row in theirs]
            common = min((list(x) for x in by_fold if x), key=len, default=[])
            cells = [f"{sum(ours['by_fold'][int(k)] for k in common):.1f}"]
            cells += [f"{sum(x[k] for k in common):.1f}" if x else "" for x in by_fold]
            of_all = [ours, *(row["models"][name] if row else None for row in theirs)]
            cells = [f"{c} ({m['mcse']:.2g})" if m else "" for c, m in zip(cells, of_all)]
            lines.append("| " + " | ".join([title, name, str(len(common)), *cells]) + " |")
    return lines


def draw_folds(known: dict[str, Any], path: Path) -> None:
    rows = {(r["problem"], r["way"], r["state"]): r["seconds"] for r in known["folds"]}
    problems = [x for x in TITLES if (x, "pcv", "cold") in rows]
    fig, ax = plt.subplots(figsize=(7.5, 0.55 * len(problems) + 1.6), layout="constrained")
    for (way, state), (label, color, marker) in WAYS.items():
        at = [(rows[p, way, state], i) for i, p in enumerate(problems) if (p, way, state) in rows]
        if at:
            filled = color if (way, state) != ("pcv", "second call") else "white"
            ax.plot(*np.transpose(at), marker, color=color, mfc=filled, label=label, ms=7)
    ax.set_xscale("log")
    ax.set_xlabel("seconds, imports apart")
    ax.set_yticks(range(len(problems)), [TITLES[p] for p in problems])
    ax.set_ylim(len(problems) - 0.5, -0.5)
    ax.grid(axis="x", color="#dddddd")
    ax.spines[["top", "right"]].set_visible(False)
    fig.legend(loc="outside upper center", ncols=3, frameon=False)
    fig.savefig(path, dpi=150)
    plt.close(fig)


def draw_scaling(rows: list[dict[str, Any]], path: Path) -> None:
    fig, axes = plt.subplots(1, len(AXES), figsize=(9, 2.9), layout="constrained", sharey=True)
    for ax, axis in zip(axes, AXES):
        mine = [r for r in rows if r["problem"] == axis]
        for state, marker in (("cold", "o"), ("second call", "D")):
            at = [(r[axis], r["seconds"]) for r in mine if r["state"] == state]
            filled = "#1f5a8a" if state == "cold" else "white"
            label = {"cold": "a first call", "second call": "a second call"}[state]
            ax.loglog(*np.transpose(at), marker + "-", color="#1f5a8a", mfc=filled, label=label)
        ax.set_title(f"slope {slope(mine, axis):.2f}", fontsize=10)
        ax.set_xlabel({"chains": "chains of a fold"}.get(axis, axis))
        ax.grid(color="#dddddd")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("seconds")
    axes[0].legend(frameon=False)
    fig.savefig(path, dpi=150)
    plt.close(fig)


def main() -> None:
    parts, images = [INTRO.strip()], ROOT / "docs/images"
    files = sorted(RESULTS.glob("*.json"))
    for file in files:
        known = json.loads(file.read_text())
        at = known["machine"]
        versions = ", ".join(f"{name} {x}" for name, x in known["versions"].items())
        parts.append(
            f"## {at['processor']}, {at['cores']} cores\n\nPython {at['python']}, {versions}."
        )
        if "folds" in known:
            draw_folds(known, images / f"bench-{file.stem}.png")
            dates = {f"{r['date']}, {r['commit']}" for r in known["folds"]}
            parts.append(
                f"![Seconds of pcv and of loops over folds](images/bench-{file.stem}.png)\n\n"
                + "\n".join(table(known))
                + f"\n\nSeconds; `~` is by proportion. Measured {'; '.join(sorted(dates))}. "
                "Answers, elpd of the folds in common with the MCSE of all:\n\n"
                + "\n".join(answers(known))
            )
        if "scaling" in known:
            draw_scaling(known["scaling"], images / f"scaling-{file.stem}.png")
            parts.append(
                "Seconds over folds, chains and parameters (`python -m benchmarks.scaling`), with "
                "the slope of the upper half in logs:\n\n"
                f"![Seconds over folds, chains and parameters](images/scaling-{file.stem}.png)"
            )
    if not any("gpu" in json.loads(file.read_text()) for file in files):
        parts.append("No GPU has been tried: `python -m benchmarks.gpu` is for who has one.")
    (ROOT / "docs/benchmarks.md").write_text("\n\n".join(parts) + "\n")
    readme = ROOT / "README.md"
    short = "\n".join(table(json.loads(files[0].read_text()), short=True))
    whole = r"(<!-- make bench -->\n\n).*?(\n\n<!-- -->)"
    text = re.sub(whole, lambda m: m[1] + short + m[2], readme.read_text(), flags=re.S)
    readme.write_text(text)


if __name__ == "__main__":
    main()
