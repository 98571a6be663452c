"""What a call takes over from its folder of `results`, from files that it names, and from calls
before; and what it makes anew."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import pcv
from pcv.base.errors import PcvError
from pcv.compile import cache
from tests.bounds import z_limit
from tests.problems import LinearGaussian

RNG = np.random.default_rng(5)
N = 20
X, Y = RNG.normal(size=N), RNG.normal(size=N) + 1.0
FOLDS = pcv.kfold(N, 4, seed=1)
SHORT = {"progress": False, "seed": 1, "draws": 100, "warmup": 20, "chains": 4}
FIT = {"warmup": 300, "draws": 200}


def line(log_lik=None, scale=lambda: 1.0):
    """A line through the origin, whose prior has a scale that is looked up when it is traced."""

    def log_prior(params):
        return dist.Normal(0.0, scale()).log_prob(params["b"])

    def gaussian(params, data):
        return dist.Normal(params["b"] * data["x"], 1.0).log_prob(data["y"])

    def predict(key, params, data):
        return dist.Normal(params["b"] * data["x"], 1.0).sample(key)

    return pcv.Model(
        lambda key: {"b": 0.1 * jax.random.normal(key)},
        log_prior,
        log_lik or gaussian,
        dict,
        pcv.Outcome("y"),
        predict=predict,
    )


def call(model, folds=FOLDS, **more):
    return pcv.cross_validate(model, folds, data={"y": Y, "x": X}, fit=FIT, **SHORT | more)


def exact(scale):
    form = LinearGaussian(Y, X[:, None], 1.0, np.zeros(1), scale**2 * np.eye(1))
    whole = form.evidence(np.full(N, True))
    return sum(whole - form.evidence(~np.isin(np.arange(N), test)) for test in FOLDS.test)


def test_a_number_that_a_model_reads_and_that_changes(tmp_path):
    """With results, what is kept of the model belongs to what it computes now."""
    scale = [0.02]
    model = line(scale=lambda: scale[0])
    narrow = call(model, results=tmp_path)
    assert abs(narrow.elpd - exact(0.02)) < z_limit() * narrow.mcse
    scale[0] = 10.0
    wide = call(model, results=tmp_path)
    assert abs(wide.elpd - exact(10.0)) < z_limit() * wide.mcse
    assert abs(wide.elpd - exact(0.02)) > 2 * z_limit() * wide.mcse  # as what was kept would be


def test_numbers_do_not_depend_on_where_they_are_kept(tmp_path):
    model = line()
    assert call(model).elpd == call(model, results=tmp_path).elpd


def test_all_calls_of_one_model_take_a_folder(tmp_path):
    """Whose name there has a hash, unlike that in random keys."""
    model, data = line(), {"y": Y, "x": X}
    cut = {"fold_batches": "auto"}
    assert call(model, cv=cut).elpd == call(model, cv=cut, results=tmp_path).elpd
    short = {"data": data, "seed": 1, "fit": FIT, "progress": False, "splits": 4, "particles": 64}
    found = [pcv.cumulative(model, 0.5, **short, results=x) for x in (None, tmp_path)]
    assert found[0].curve.equals(found[1].curve)


SCORES = """
from pcv import Score

def above():
    def score(key, target, params, fold):
        return {"p": target.predict(key, params, fold) > LIMIT}
    return Score("above", "pointwise", score, lambda means, y: means["p"], needs=("predict",))
"""


def test_scores_of_a_file_that_changes(tmp_path, monkeypatch):
    """From the same folder of results: the share of replicates above 0, then above 100."""
    monkeypatch.chdir(tmp_path)
    model, shares = line(), []
    for limit in ("0.0", "100.0"):
        Path("mine.py").write_text(SCORES.replace("LIMIT", limit))
        cv = call(model, scores=["log", "mine.py:above"], results="kept")
        shares.append(cv.score("above")["estimate"] / N)
    assert 0.1 < shares[0] < 0.9
    assert shares[1] == 0


def test_folds_of_a_file_that_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, scheme = line(), {"scheme": "splitter", "splitter": "splits.py:Two"}
    splits = "class Two:\n    def split(self, X, y=None, groups=None):\n" + (
        "        rows = list(range(len(X)))\n"
        "        for test in (rows[:{cut}], rows[{cut}:]):\n"
        "            yield [i for i in rows if i not in test], test\n"
    )
    Path("splits.py").write_text(splits.format(cut=10))
    one = call(model, scheme, results="kept")
    Path("splits.py").write_text(splits.format(cut=8))
    two = call(model, scheme, results="kept")
    assert [(x.tree["folds"]["test"] >= 0).sum("slot").values.tolist() for x in (one, two)] == [
        [10, 10],
        [8, 12],
    ]


@pytest.mark.slow
def test_models_that_join_a_comparison_in_rounds(tmp_path):
    """A plan is made for its models: that of others is made anew."""
    models = {"line": line(), "scaled": line(scale=lambda: 0.5), "wide": line(scale=lambda: 3.0)}
    until = {"mcse_over_se": 0.0001, "rhat": 5.0, "min_draws": 100, "max_draws": 200}
    for names in (["line", "scaled"], ["line", "wide"], ["line", "scaled", "wide"]):
        some = {name: models[name] for name in names}
        cvs = call(some, until=until, results=tmp_path)
        for cv in cvs.values():
            assert (cv.diagnostics["n_draws"] == 200).all()


def walk(params, data):
    """Each value given the one before."""
    before = jnp.concatenate([jnp.zeros(1), data["y"][:-1]])
    return dist.Normal(params["b"] * before, 1.0).log_prob(data["y"])


def test_a_leak_is_told_again(tmp_path):
    """By a call that takes all over, and of the folds as they are named now."""
    model = line(walk)
    with pytest.warns(UserWarning, match="depend"):
        first = call(model, results=tmp_path)
    (mark,) = first.tree.attrs["marks"]
    with pytest.warns(UserWarning, match="depend"):
        again = call(model, results=tmp_path)
    assert again.tree.attrs["marks"] == [mark]
    assert all("its score is too good" in repr(cv) for cv in (first, again))
    renamed = FOLDS._replace(id=np.array([f"part {x}" for x in FOLDS.id]))
    with pytest.warns(UserWarning, match="part "):
        call(model, renamed)


def test_warnings_are_given_without_progress(capsys):
    call(line(), cv={"superchains": 2})
    assert "warning: cv.superchains: 2 leave one degree of freedom" in capsys.readouterr().err


def test_a_scheme_without_folds():
    with pytest.raises(
        PcvError, match=r"^folds\.scheme: cumulative has no folds to sample; use pcv\.cum"
    ):
        call(line(), {"scheme": "cumulative", "splits": 4})


def test_a_file_of_draws_is_not_ignored():
    with pytest.raises(PcvError, match=r"^fit\.file: only configs name a file of draws; open it"):
        pcv.cross_validate(line(), FOLDS, data={"y": Y, "x": X}, fit={"file": "draws.nc"})


def test_the_fit_of_a_single_unit():
    tree = pcv.fit(line(), data={"y": Y[:1], "x": X[:1]}, progress=False, seed=1)
    assert tree["posterior"]["b"].size == 4000


def test_a_folder_among_what_is_compiled(tmp_path, monkeypatch):
    """On a GPU, XLA keeps one there."""
    (tmp_path / "per_fusion").mkdir()
    (tmp_path / "old").write_bytes(b"0" * 10)
    monkeypatch.setattr(cache, "CACHE_BYTES", 5)
    cache._prune(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["per_fusion"]
