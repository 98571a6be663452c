"""Fits of Bambi as the full-data fit: its variables are mapped back to the parameters."""

import bambi as bmb
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import pcv
from pcv.base.errors import PcvError
from pcv.core.fit import _variables
from pcv.models.model import numeric

pytestmark = [
    pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning"),
    pytest.mark.filterwarnings("ignore:For backward compatibility:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The intercept is omitted in ordinal:UserWarning"),
]
N = 40
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "x": RNG.normal(3, 1, N),
        "z": RNG.normal(-2, 1, N),
        "f": np.array(list("abc"))[np.arange(N) % 3],
        "g": np.array(list("pqr"))[np.arange(N) // 14],
        "count": RNG.poisson(3, N),
        "kind": np.array(list("uvw"))[RNG.integers(0, 3, N)],
    }
)
FRAME["y"] = 1 + FRAME["x"] - FRAME["z"] + RNG.normal(size=N)
FRAME["grade"] = pd.Categorical(FRAME["kind"], ordered=True)
QUIET = {"cores": 1, "random_seed": 1, "progressbar": False, "compute_convergence_checks": False}
PARTS = bmb.Formula("y ~ x * z + f", "sigma ~ z")
MODELS = {
    "groups": lambda: bmb.Model("y ~ x + (x * f | g)", FRAME),  # 3 groups by 3 effects
    "centred groups": lambda: bmb.Model("y ~ x + (x | g)", FRAME, noncentered=False),
    "no intercept": lambda: bmb.Model("y ~ 0 + x + (1 | g)", FRAME),
    "not centred": lambda: bmb.Model("y ~ x", FRAME, center_predictors=False),
    "groups of sigma": lambda: bmb.Model(bmb.Formula("y ~ x", "sigma ~ z + (1 | g)"), FRAME),
    "categorical": lambda: bmb.Model("kind ~ x + f + (1 | g)", FRAME, family="categorical"),
    "cumulative": lambda: bmb.Model("grade ~ x + (1 | g)", FRAME, family="cumulative"),
    "negative binomial": lambda: bmb.Model("count ~ x", FRAME, family="negativebinomial"),
    "Gaussian process": lambda: bmb.Model("y ~ z + hsgp(x, m=4, c=1.5)", FRAME),
    "aliases": lambda: with_aliases(),
}
# 4 chains of 250 draws, so that their R-hat and ESS pass.
LENGTH = {"draws": 250, "tune": 500, "chains": 4}


def with_aliases():
    model = bmb.Model("y ~ x + (1 | g)", FRAME)
    model.set_alias({"Intercept": "a", "x": "b", "1|g": "u", "sigma": "s"})
    return model


def log_densities(model, fit):
    """Of each draw, by the converted model; and whether its variables come back."""
    made = pcv.from_bambi(model)
    variables, _ = _variables(fit, made.dims)
    flat = {name: x.reshape(-1, *x.shape[2:]) for name, x in variables.items()}
    data = numeric(made.data.columns)

    @jax.vmap
    def both(variables):
        params = made.unconstrain(variables)
        density = made.log_prior(params) + made.log_lik(params, data).sum()
        return density, {name: made.constrain(params)[name] for name in variables}

    density, back = both({name: jnp.asarray(x) for name, x in flat.items()})
    for name, x in flat.items():
        np.testing.assert_allclose(back[name], x, rtol=1e-7, atol=1e-9)
    return np.asarray(density)


def check_densities(model, fit):
    expected = fit["sample_stats"]["lp"].values.ravel()
    np.testing.assert_allclose(log_densities(model, fit), expected, rtol=1e-9)


def test_fits_of_bambi_serve_and_those_of_other_data_do_not():
    """Its draws have the density that Bambi gave them, unless they are changed."""
    model = bmb.Model(PARTS, FRAME)
    fit = model.fit(**LENGTH, **QUIET)
    check_densities(model, fit)
    shifted = fit["posterior"].to_dataset()
    wrong = xr.DataTree.from_dict({"posterior": shifted.assign(Intercept=shifted["Intercept"] + 1)})
    expected = fit["sample_stats"]["lp"].values.ravel()
    assert (np.abs(log_densities(model, wrong) - expected) > 1e-3).all()
    cv = pcv.loo(model, fit=fit, brute_force=False, progress=False)
    theirs = fit["posterior"]["Intercept"]
    np.testing.assert_allclose(cv.tree["posterior"]["Intercept"], theirs, rtol=1e-6)
    again = pcv.loo(model, fit=cv.tree, brute_force=False, progress=False)
    assert again.elpd == pytest.approx(cv.elpd, abs=1e-6)
    other = bmb.Model(PARTS, FRAME.assign(x=FRAME["x"] + 0.5))
    with pytest.raises(PcvError, match="is not that of this model and these data"):
        pcv.loo(other, fit=fit, brute_force=False, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_so_have_those_of_other_models(name):
    model = MODELS[name]()
    check_densities(model, model.fit(draws=4, tune=4, chains=2, **QUIET))
