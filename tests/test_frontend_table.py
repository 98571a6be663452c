"""What each front-end can do: the table of the documentation, made by trying it.

    python -m tests.test_frontend_table

prints it.
"""

from pathlib import Path

import bambi as bmb
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pymc as pm
import pytest

import pcv
from pcv.base.errors import PcvError
from pcv.models.checks.prior import strayed

PAGE = Path(__file__).parents[1] / "docs/reference/frontends.md"
RNG = np.random.default_rng(0)
X = RNG.normal(size=12)
ROWS = {"x": X, "y": 1 + 0.5 * X + RNG.normal(size=12)}
MISSING = {**ROWS, "y": np.where(np.arange(12) == 3, np.nan, ROWS["y"])}
PROGRAM = """
data { int N; vector[N] x; vector[N] y; }
parameters { real a; real b; real<lower=0> sigma; }
model {
  a ~ normal(0, 1); b ~ normal(0, 1); sigma ~ normal(0, 1);
  y ~ normal(a + b * x, sigma);
  FACTOR
}
generated quantities {
  vector[N] log_lik; array[N] real y_rep = normal_rng(a + b * x, sigma);
  for (n in 1:N) log_lik[n] = normal_lpdf(y[n] | a + b * x[n], sigma);
}
"""


def in_numpyro(rows, factor=False, **options):
    def line(x, y):
        a, b = (numpyro.sample(name, dist.Normal(0, 1)) for name in "ab")
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        if factor:
            numpyro.factor("small", -(b**2))
        with numpyro.plate("n", len(x)):
            numpyro.sample("y", dist.Normal(a + b * x, sigma), obs=y)

    return pcv.from_numpyro(line, rows, **options)


def in_pymc(rows, factor=False, **options):
    with pm.Model() as line:
        a, b = (pm.Normal(name, 0, 1) for name in "ab")
        sigma = pm.HalfNormal("sigma", 1)
        if factor:
            pm.Potential("small", -(b**2))
        pm.Normal("y", a + b * rows["x"], sigma, observed=rows["y"])
    return pcv.from_pymc(line, **options)


def in_bambi(rows, factor=False, **options):
    if factor:
        raise PcvError("a formula has no factors")
    model = bmb.Model("y ~ x", pd.DataFrame(rows), dropna=True)
    return pcv.from_bambi(model, **options)


def in_stan(rows, factor=False, **options):
    program = PROGRAM.replace("FACTOR", "target += -square(b);" * factor)
    return pcv.from_stan(program, rows, "y", **options)


FRONTENDS = {"NumPyro": in_numpyro, "PyMC": in_pymc, "Bambi": in_bambi, "Stan": in_stan}


def works(make, *args, **options):
    try:
        make(*args, **options)
    except (PcvError, TypeError):
        return False
    return True


FEATURES = {
    "predictions, and scores of replicates": lambda make: make(ROWS).predict is not None,
    "PITs by distribution functions": lambda make: make(ROWS).cdf is not None,
    "scores of exact moments (DSS, RMSE)": lambda make: make(ROWS).moments is not None,
    "draws of another sampler as `fit=`": lambda make: make(ROWS).unconstrain is not None,
    "held-out data (`pcv.score`)": lambda make: make(ROWS).append is not None,
    "evidence": lambda make: make(ROWS).log_joint is None and strayed(make(ROWS)) is None,
    "factors of the prior (`pm.Potential`, `numpyro.factor`, `target +=`)": (
        lambda make: works(make, ROWS, factor=True)
    ),
    "missing outcomes": lambda make: works(make, MISSING),
    "frequencies (`weights=`)": lambda make: works(make, ROWS, weights=np.full(12, 2)),
}


def table():
    """The table, in Markdown."""
    lines = [f"| | {' | '.join(FRONTENDS)} |", f"|---{'|---' * len(FRONTENDS)}|"]
    for name, can in FEATURES.items():
        cells = ["yes" if can(make) else "no" for make in FRONTENDS.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


@pytest.mark.filterwarnings("ignore")
def test_the_page_says_what_front_ends_can_do():
    pytest.importorskip("stanli")
    assert table() in PAGE.read_text()


if __name__ == "__main__":
    with jax.enable_x64(True):
        print(table())
