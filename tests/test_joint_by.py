"""Joint scores of groups within folds (`joint_by`) against closed forms."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import pcv
from pcv import PcvError
from pcv.base import devices
from pcv.folds.base import from_labels, train_mask
from pcv.folds.exchangeable import kfold, leave_one_group_out
from pcv.folds.joint_groups import first_slots
from pcv.models.joint_groups import by_group
from pcv.models.model import Fold
from pcv.pipeline import config
from tests.bounds import z_limit
from tests.problems import GROUP_OF_UNIT, hierarchy, kriging, normal_means

UNITS = np.arange(14)
SHORT = {"chains": 8, "draws": 200, "progress": False}
WHOLE = from_labels(np.array([0, 0, 1, 0, 1])[GROUP_OF_UNIT], ["a", "b"])
"""folds of three groups and of two"""
PARTS = from_labels(UNITS % 2, ["a", "b"])
"""folds that hold parts of each group"""


def expected(problem, folds, group):
    """Names and exact elpd of the groups of each fold, in the order of their first units."""
    names, elpd, units = [], [], np.arange(len(group))
    for train, test in zip(train_mask(folds, len(group)), folds.test):
        test = test[test >= 0]
        for of in dict.fromkeys(group[test].tolist()):
            names.append(f"group {of}")
            both = train | np.isin(units, test[group[test] == of])
            elpd.append(problem.evidence(both) - problem.evidence(train))
    return names, np.array(elpd)


def errors(cv, elpd):
    """Errors of terms, of folds' sums and of the total, in units of their MCSE."""
    d, apart = cv.diagnostics, cv.scores.elpd - elpd
    there = d["group_name"].values != ""
    of_fold = np.bincount(np.nonzero(there)[0], apart) / d["pointwise_mcse"].values
    of_term = apart / d["pointwise_own_mcse"].values[there]
    return np.array([*of_term, *of_fold, apart.sum() / cv.mcse])


@pytest.mark.parametrize(
    ("group", "predictive"),
    [(GROUP_OF_UNIT, "marginal"), (UNITS % 2, "marginal"), (UNITS % 2, "plain")],
    ids=["groups of effects", "others", "plain"],
)
def test_terms_are_exact(group, predictive):
    """Of left-out effects that are integrated out or drawn, whether groups are those of the effects
    or cut across them."""
    problem = hierarchy("marginal")
    more = {"data": problem.data, "joint_by": group, "predictive": predictive, **SHORT}
    cv = pcv.cross_validate(problem.model, WHOLE, **more)
    names, elpd = expected(problem, WHOLE, group)
    assert cv.scores.term == names
    z = errors(cv, elpd)
    assert np.abs(z).max() < z_limit(z.size, df=30)


def test_ten_folds_of_three_rats_have_thirty_terms():
    rat = np.repeat(np.arange(30), 5)
    first = first_slots(kfold(150, 10, group_by=rat, seed=1).test, rat)
    assert first.sum(axis=1).tolist() == [3] * 10


@pytest.fixture(scope="module")
def means():
    return normal_means()


@pytest.fixture(scope="module")
def folder(means, shelf):
    """Folds that test parts of each group, by group and by unit."""

    def make(folder):
        more = {"data": means.data, "scores": ["rmse"], **SHORT, "draws": 400}
        for name, by in (("cv", "group"), ("by unit", None)):
            with devices.precision("float64"):
                found = pcv.cross_validate(predicting(means.model), PARTS, joint_by=by, **more)
            found.save(folder / name)

    return shelf("groups of two folds", make)


@pytest.fixture(scope="module")
def cv(folder):
    return pcv.load(folder / "cv")


@pytest.fixture(scope="module")
def by_unit(folder):
    return pcv.load(folder / "by unit")


def predicting(model):
    def outcome(params, data):
        return dist.Normal(params["theta"][data["group"]], 1.0)

    return model._replace(
        predict=lambda key, params, data: outcome(params, data).sample(key),
        moments=lambda params, data: (params["theta"][data["group"]], jnp.ones(14)),
    )


def test_parts_of_groups_are_exact(cv, by_unit, means):
    """A broken twin adds up the scores of a group's units, each on its own."""
    names, elpd = expected(means, PARTS, GROUP_OF_UNIT)
    assert cv.scores.term == names
    assert len(names) == 10
    z = errors(cv, elpd)
    assert np.abs(z).max() < z_limit(z.size, df=30)
    first = first_slots(PARTS.test, GROUP_OF_UNIT)
    code = np.where(PARTS.test >= 0, GROUP_OF_UNIT[PARTS.test], -1)
    terms = by_unit.diagnostics["pointwise_elpd"].values
    twin = [terms[k][code[k] == code[k, slot]].sum() for k, slot in np.argwhere(first)]
    own = cv.diagnostics["pointwise_own_mcse"].values[first]
    assert np.abs((np.array(twin) - elpd) / own).max() > 2 * z_limit(z.size, df=30)


def test_a_target_sees_the_dependence_within_a_group():
    """The predictive of part of a test set takes the covariance of that part."""
    problem, group = kriging(), UNITS % 2
    folds = problem.schemes["groups"]
    cv = pcv.cross_validate(problem.model, folds, data=problem.data, joint_by=group, **SHORT)
    names, elpd = expected(problem, folds, group)
    assert cv.scores.term == names
    z = errors(cv, elpd)
    assert np.abs(z).max() < z_limit(z.size, df=30)


def test_one_group_in_each_fold_is_the_joint_score(means):
    folds = leave_one_group_out(GROUP_OF_UNIT, "group")
    more = {"data": means.data, "predictive": "plain", **SHORT}
    grouped = pcv.cross_validate(means.model, folds, joint_by="group", **more)
    plain = pcv.cross_validate(means.model, folds, **more)
    np.testing.assert_array_equal(grouped.scores.elpd, plain.scores.elpd)
    np.testing.assert_array_equal(grouped.scores.mcse, plain.scores.mcse)
    assert (grouped.joint, plain.joint) == (False, True)
    assert grouped.scores.term == plain.scores.term == [f"group {i}" for i in range(5)]


def test_other_results_are_those_of_units(cv, by_unit):
    for name in ("joint_elpd", "joint_mcse", "rmse_pointwise", "rmse_pointwise_mcse", "khat"):
        assert cv.diagnostics[name].equals(by_unit.diagnostics[name])
    np.testing.assert_array_equal(cv.score("rmse"), by_unit.score("rmse"))
    table, other = cv.table(), by_unit.table()
    assert table.drop(columns=["elpd", "mcse"]).equals(other.drop(columns=["elpd", "mcse"]))
    assert table["elpd"].isna().all()


def test_results_name_groups(cv):
    terms = cv.scores.elpd
    assert cv.elpd == terms.sum()
    assert cv.se == pytest.approx(np.sqrt(10 * terms.var(ddof=1)))
    assert "Joint log score by group of y" in repr(cv)
    assert cv.pointwise.dims == ("group",)
    np.testing.assert_array_equal(cv.pointwise, terms)
    assert cv.to_arviz().elpd_i.dims == ("group",)
    c = pcv.compare({"a": cv, "b": cv})
    assert "Joint log score by group of y, plain predictive: 10 groups in 2 folds" in repr(c)
    assert "in every group" in repr(c)
    assert list(c.dataset["unit"].values) == cv.scores.term
    mix = pcv.mixture({"a": cv, "b": cv}, [0.5, 0.5])
    np.testing.assert_allclose(mix.scores.elpd, terms, rtol=1e-12)
    assert "Joint log score by group" in repr(mix)
    assert set(pcv.compare({"a": cv}, joint=True).compared.frame["joint_by"]) == {"", "group"}


def test_the_predictive_of_part_of_a_test_set():
    """Slots of a group in any places; padding is kept out."""

    def log_predictive(params, fold):
        each = jnp.where(fold.test >= 0, params[fold.test], 0.0)
        return each.sum() ** 2, each

    values, code = jnp.arange(1.0, 7.0), np.array([3, 1, 3, 1, 3, 0])
    fold = Fold(jnp.zeros(6, bool), jnp.array([1, 2, 3, 4, -1]))
    for most in (2, 4):
        joint, found = by_group(log_predictive, code, most)(values, fold)
        assert joint == (2 + 3 + 4 + 5) ** 2
        np.testing.assert_array_equal(found, [(2 + 4) ** 2, (3 + 5) ** 2, 0, 0, 0])


def test_what_cannot_be_grouped(cv, by_unit, means):
    def call(folds=PARTS, **more):
        pcv.cross_validate(means.model, folds, data=means.data, progress=False, **more)

    for case, said in (
        (lambda: call(joint_by="grp"), "no column 'grp'; did you mean 'group'"),
        (lambda: call(joint_by=np.arange(3)), "joint_by has 3 values; give one for each of the 14"),
        (
            lambda: call(kfold(14, 3, repeats=2), joint_by="group"),
            "joint_by: some units are tested by several folds",
        ),
        (
            lambda: call({"scheme": "leave_one_out", "exact": "auto"}, joint_by="group"),
            "joint_by: groups are scored in folds that are all sampled",
        ),
        (lambda: pcv.compare({"a": cv}).by("group"), "by: joint_by has scored groups"),
        (lambda: pcv.compare({"a": cv}).by_step, "by_step: joint_by has scored groups"),
        (lambda: pcv.compare({"a": cv}).cumulative(3), "cumulative: joint_by has scored groups"),
        (
            lambda: pcv.compare({"a": cv, "b": by_unit}, joint=False),
            "different joint_by .group, .; give both the same joint_by",
        ),
    ):
        with pytest.raises(PcvError, match=said):
            case()


def test_what_depends_on_it():
    """Folds and their chains are made anew, the full-data fit is not."""
    experiment = {
        "data": {"file": "rats.csv", "outcome": "weight"},
        "folds": {"scheme": "k_fold", "k": 10, "group_by": "rat"},
        "models": {"m": {"model": "models.py:m"}},
    }
    with_groups, without = (
        config.parse({"seed": 1, "experiments": {"rats": experiment | more}})
        for more in ({"joint_by": "rat"}, {})
    )
    changed = {
        stage
        for stage in ("data", "fit", "folds", "warmup", "compare")
        if config.stage_config(with_groups, "rats", stage, "m")
        != config.stage_config(without, "rats", stage, "m")
    }
    assert changed == {"folds", "warmup"}
