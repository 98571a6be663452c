"""Example 1 of PCV on other data than its page has: `python -m benchmarks.authors [SEED ...]`.

The page's data are of the first seed for which the fourth covariate is worth about what the paper
prints. Here are seeds as they come (default 1 to 5): A - B with the effects of the left-out group
integrated out, and by the authors' algorithm, whose chains draw them.
"""

import sys

import numpy as np

import pcv
from pcv.models.zoo.grouped import regression
from pcv.pipeline.data.registry import grouped_gaussian

WAYS = {
    "integrated": ({}, {}),
    "authors'": (
        {"priors": "authors"},
        {"predictive": "plain", "estimator": "own", "cv": {"adapt": "never"}},
    ),
}


def main(seeds: list[int]) -> None:
    print("| seed | way | A - B (SE, MCSE) | flagged | R-hat max |")
    print("|---|---|---|---|---|")
    for seed in seeds:
        table = grouped_gaussian(seed)
        data = {name: table[name].to_numpy() for name in table}
        for way, (priors, settings) in WAYS.items():
            models = {
                name: regression(data, covariates, **priors)
                for name, covariates in (("A", 4), ("B", 3))
            }
            folds = pcv.leave_one_group_out(data["group"])
            length = {"chains": 4, "warmup": 1000, "draws": 1000, "seed": seed, "progress": False}
            try:
                runs = pcv.cross_validate(models, folds, data=data, **length, **settings)
            except pcv.PcvError as error:
                print(f"| {seed} | {way} | refused: {str(error).splitlines()[0]} | | |", flush=True)
                continue
            row = pcv.compare(runs, reference="B").frame.loc["A"]
            flagged = sum(int((run.folds["verdict"] != "ok").sum()) for run in runs.values())
            rhat = np.max([float(run.diagnostics["rhat_max"]) for run in runs.values()])
            numbers = f"{row['elpd_diff']:.1f} ({row['dse']:.1f}, {row['mcse_diff']:.2g})"
            print(f"| {seed} | {way} | {numbers} | {flagged} of 100 | {rhat:.3f} |", flush=True)


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1:]] or [1, 2, 3, 4, 5])
