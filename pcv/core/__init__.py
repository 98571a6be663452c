"""The method: functions from a `Problem` and settings to fits, warmups, samples and diagnostics.

`cross_validate` composes them. They know no config file, no folder and no checkpoint; a store of
artifacts and of blocks of draws can be passed to them. For example in a simulation study, where
data sets of one shape share all compiled programs:

>>> import jax, numpy as np, numpyro.distributions as dist, pcv
>>> from pcv.analysis import comparison, results
>>> from pcv.core.cross_validate import cross_validate
>>> from pcv.core.problem import pose
>>> from pcv.core.settings import Settings
>>> prior = dist.Normal(0.0, 10.0)
>>> model = pcv.Model(
...     init=lambda key: {"mean": prior.sample(key)},
...     log_prior=lambda params: prior.log_prob(params["mean"]),
...     log_lik=lambda params, data: dist.Normal(params["mean"], 1.0).log_prob(data["y"]),
...     constrain=lambda params: params,
...     outcome=pcv.Outcome("y"),
... )
>>> settings = Settings.model_validate({"folds": {"scheme": "k_fold", "k": 4}})
>>> for simulation in range(2):
...     y = np.random.default_rng(simulation).normal(size=20)
...     problem = pose("normal", model, {"y": y}, pcv.kfold(20, 4, seed=1), seed=simulation)
...     (result,) = cross_validate({"normal": problem}, settings).values()
...     scores = results.scores(result.diagnostics, "joint", data="", folds="")
...     print(f"{comparison.total(scores).elpd:.0f}, {comparison.total_mcse(scores) < 0.05}")
-26, True
-22, True

`total_mcse` is not the root of the sum of squares of the folds' `joint_mcse`: folds share full-data
draws.
"""
