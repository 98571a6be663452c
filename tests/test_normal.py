"""Targets: outcomes that are jointly normal, and others that a user writes."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import multivariate_normal, norm

import pcv
from pcv.base.errors import PcvError
from pcv.folds.time import hv_block
from pcv.models.checks.folds import check_gap
from pcv.models.checks.prior import check_prior
from pcv.models.checks.shapes import check_shapes
from pcv.models.checks.values import check_values
from pcv.models.model import Fold, Outcome, Target, support
from pcv.models.normal import normal_target
from tests.bounds import z_limit
from tests.problems import exact, kriging

N = 14
TRAIN = np.isin(np.arange(N), [0, 1, 2, 5, 6, 7, 8, 11, 12])
TEST = np.array([3, 4, -1])
PROBLEM = kriging()
DATA = {**PROBLEM.data, "unit": np.arange(N)}
FOLD = Fold(jnp.asarray(TRAIN), jnp.asarray(TEST))
QUICK = {"progress": False, "fit": {"warmup": 300, "draws": 300}}


def conditional(problem, mu):
    """Of units 3 and 4 given the training units, by inverting blocks."""
    x, y = problem.data["x"], problem.data["y"]
    cov = np.exp(-((x[:, None] - x) ** 2) / 2) + 0.3 * np.eye(N)
    kept, test = np.flatnonzero(TRAIN), TEST[:2]
    weights = cov[np.ix_(test, kept)] @ np.linalg.inv(cov[np.ix_(kept, kept)])
    mean = mu + weights @ (y[kept] - mu)
    return mean, cov[np.ix_(test, test)] - weights @ cov[np.ix_(kept, test)], cov, kept


class TestConditional:
    def test_densities(self):
        target, y, params = PROBLEM.model, PROBLEM.data["y"], {"mu": jnp.array(1.7)}
        mean, within, cov, kept = conditional(PROBLEM, 1.7)
        joint, pointwise = target.log_predictive(params, FOLD)
        assert joint == pytest.approx(multivariate_normal(mean, within).logpdf(y[3:5]), rel=1e-9)
        alone = norm(mean, np.sqrt(np.diag(within))).logpdf(y[3:5])
        np.testing.assert_allclose(pointwise, [*alone, 0], rtol=1e-9)
        np.testing.assert_allclose(target.observed(FOLD)[:2], y[3:5])
        others = jnp.array([0.5, 3.0, 7.0])
        joint, _ = target.density(params, FOLD, others)
        assert joint == pytest.approx(multivariate_normal(mean, within).logpdf([0.5, 3.0]))
        of_train = multivariate_normal(np.full(9, 1.7), cov[np.ix_(kept, kept)]).logpdf(y[kept])
        prior = norm(1, 2).logpdf(1.7)
        assert target.log_density(params, FOLD) == pytest.approx(of_train + prior, rel=1e-9)

    def test_moments_and_replicates(self):
        target, params = PROBLEM.model, {"mu": jnp.array(1.7)}
        mean, within, _, _ = conditional(PROBLEM, 1.7)
        found_mean, found_cov = target.moments(params, FOLD)
        np.testing.assert_allclose(found_mean[:2], mean, rtol=1e-9)
        np.testing.assert_allclose(found_cov[:2, :2], within, rtol=1e-9)
        keys = jax.random.split(jax.random.key(1), 20_000)
        drawn = jax.vmap(lambda key: target.predict(key, params, FOLD))(keys)[:, :2]
        sd = np.sqrt(np.diag(within))
        np.testing.assert_array_less(abs(drawn.mean(0) - mean), z_limit(2) * sd / np.sqrt(20_000))
        np.testing.assert_allclose(np.cov(drawn.T), within, atol=0.02)  # 5 sds: false alarm < 1e-4


@pytest.fixture(scope="module")
def found():
    return pcv.cross_validate(
        PROBLEM.model,
        PROBLEM.schemes["groups"],
        data=PROBLEM.data,
        scores=["log", "crps", "dss", "hyvarinen"],
        **QUICK,
    )


class TestFromPython:
    """From targets to scores, as a user would."""

    def test_exact(self, found):
        answer = exact(PROBLEM, PROBLEM.schemes["groups"])
        assert found.joint
        assert abs(found.elpd - answer.joint.sum()) < z_limit(df=31) * found.mcse  # of 32 batches
        assert 0 < found.mcse < 0.5
        by_unit = found.pointwise.values - answer.pointwise[~np.isnan(answer.pointwise)]
        assert np.abs(by_unit).max() < 0.2  # false alarm < 1e-4: sd .015 at most
        # False alarm < 1e-4: chance flags one fold in 3% of runs.
        assert (found.folds["verdict"] != "ok").sum() <= 2

    def test_shown(self, found):
        assert "\np " not in repr(found)
        assert "log_likelihood" not in found.to_datatree()
        assert list(found.tree["posterior"].data_vars) == ["mu"]
        assert np.isnan(found.p)
        assert float(found.to_arviz().elpd) == pytest.approx(found.elpd)
        assert np.isfinite(found.score("crps").mcse)
        assert np.isfinite(found.score("hyvarinen", "joint").mcse)

    @pytest.mark.slow
    def test_beside_a_model(self, found):
        """A regression on nothing, independent units: worse where neighbours are alike."""
        prior = dist.Normal(1.0, 2.0)
        independent = pcv.Model(
            lambda key: {"mu": prior.sample(key)},
            lambda params: prior.log_prob(params["mu"]),
            lambda params, data: dist.Normal(params["mu"], 1.3**0.5).log_prob(data["y"]),
            lambda params: params,
            Outcome("y"),
        )
        folds = PROBLEM.schemes["groups"]
        alone = pcv.cross_validate(independent, folds, data=PROBLEM.data, **QUICK)
        both = pcv.compare({"kriging": found, "independent": alone})
        assert both.frame.index[0] == "kriging"

    def test_psis(self):
        found = pcv.loo(PROBLEM.model, data=PROBLEM.data, brute_force=False, **QUICK)
        answer = exact(PROBLEM, PROBLEM.schemes["leave one out"])
        assert abs(found.elpd - np.nansum(answer.pointwise)) < z_limit() * found.mcse
        assert found.mcse < 0.2

    @pytest.mark.slow
    def test_an_autoregression_in_two_ways(self):
        """By its covariance, and by a filter that skips what is missing."""
        y, time = PROBLEM.data["y"] - 2, np.arange(N)
        space = support(dict.fromkeys(("scale", "noise"), dist.constraints.positive))
        prior = dist.LogNormal(0.0, 0.5)

        def init(key):
            scale, noise = prior.sample(key, (2,))
            return space.unconstrain({"scale": scale, "noise": noise})

        def log_prior(params):
            values = space.constrain(params).values()
            return sum(prior.log_prob(x) for x in values) + space.log_jacobian(params)

        def moments(params):
            theta = space.constrain(params)
            signal = jnp.exp(-jnp.abs(time[:, None] - time) / theta["scale"])
            return jnp.zeros(N), signal + theta["noise"] ** 2 * jnp.eye(N)

        def log_likelihood(params, seen):
            theta = space.constrain(params)
            phi = jnp.exp(-1 / theta["scale"])

            def step(carry, now):
                mean, var = carry
                value, there = now
                total = var + theta["noise"] ** 2
                term = dist.Normal(mean, jnp.sqrt(total)).log_prob(value)
                gain = jnp.where(there, var / total, 0.0)
                mean, var = mean + gain * (value - mean), var * (1 - gain)
                return (phi * mean, phi**2 * var + 1 - phi**2), jnp.where(there, term, 0.0)

            _, terms = jax.lax.scan(step, (0.0 * phi, 1.0 + 0.0 * phi), (jnp.asarray(y), seen))
            return terms.sum()

        def log_predictive(params, fold):
            known = log_likelihood(params, fold.train)
            places = jnp.where(fold.test >= 0, fold.test, N)
            seen = jax.vmap(lambda place: fold.train.at[place].set(True, mode="drop"))(places)
            pointwise = jax.vmap(log_likelihood, (None, 0))(params, seen) - known
            return log_likelihood(params, seen.any(0)) - known, pointwise

        models = {
            "covariance": normal_target(init, log_prior, moments, space.constrain, Outcome("y"), y),
            "filter": Target(
                init,
                lambda params, fold: log_prior(params) + log_likelihood(params, fold.train),
                log_predictive,
                Outcome("y"),
                space.constrain,
            ),
        }
        found = pcv.cross_validate(
            models, pcv.block(N, 5), data={"y": y}, chains=4, draws=100, **QUICK
        )
        for joint in (True, False):
            both = [replace(cv, joint=joint) for cv in found.values()]
            error = np.hypot(both[0].mcse, both[1].mcse)
            # 8 batches of each fold, so 14 degrees of freedom or more.
            assert abs(both[0].elpd - both[1].elpd) < z_limit(2, df=14) * error
            assert error < 0.2


class TestRefusals:
    target = PROBLEM.model

    def refused(self, **change):
        with pytest.raises(PcvError) as error:
            check_shapes(self.target._replace(**change), DATA, N, "y", "gp")
        return str(error.value)

    def test_what_its_functions_return(self):
        check_shapes(self.target, DATA, N, "y", "gp")
        assert "model 'gp': log_density returns an array" in self.refused(
            log_density=lambda params, fold: jnp.ones(3)
        )
        assert "model 'gp': log_predictive returns an array" in self.refused(
            log_predictive=lambda params, fold: jnp.ones(())
        )
        assert "its outcome is 'z'" in self.refused(outcome=Outcome("z"))

    def test_a_density_that_is_not_finite(self):
        units = [str(i) for i in range(N)]
        check_values(self.target, DATA, "gp", units)
        broken = self.target._replace(
            log_density=lambda params, fold: jnp.log(-(params["mu"] ** 2))
        )
        with pytest.raises(PcvError, match="'gp': log_density is not finite at draws from `init`"):
            check_values(broken, DATA, "gp", units)

    def test_draws_that_do_not_follow_the_prior(self):
        check_prior(self.target, N, "gp")
        broken = self.target._replace(init=lambda key: {"mu": 3 + jax.random.normal(key)})
        with pytest.warns(UserWarning, match="draws from `init` do not follow"):
            check_prior(broken, N, "gp")

    def test_outcomes_of_the_test_set_in_the_density(self):
        def made(data):
            leaks = kriging().model._replace(
                log_density=lambda params, fold: -((params["mu"] - data["y"].mean()) ** 2)
            )
            return leaks

        units = [str(i) for i in range(N)]
        words = check_gap(made, DATA, "y", hv_block(units, 1, 2), units, "gp")
        assert re.search("log_density of fold .* depends on outcomes that", words)

    def test_a_marginal_predictive(self):
        with pytest.raises(PcvError, match=r"a pcv\.Target gives its own; leave out `predictive`"):
            pcv.cross_validate(self.target, data=PROBLEM.data, predictive="marginal", **QUICK)

    def test_scores_that_it_has_not_what_they_need(self):
        bare = Target(*self.target[:5])
        for score, needed in [
            ("crps", r"replicates of the outcome: pcv\.Target\(\.\.\., predict=\.\.\.\)"),
            ("dss", r"needs pcv\.Target\(\.\.\., moments=\.\.\.\)"),
            ("hyvarinen", r"needs pcv\.Target\(\.\.\., density=\.\.\., observed=\.\.\.\)"),
        ]:
            with pytest.raises(PcvError, match=needed):
                pcv.cross_validate(bare, data=PROBLEM.data, scores=["log", score], **QUICK)
