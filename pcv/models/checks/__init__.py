"""Checks of models and their data before sampling.

`shapes` traces a model's functions without running them; `values` evaluates densities and gradients
at prior draws, `slopes` compares gradients with finite differences; `prior` compares draws with the
prior density, and `folds` checks gaps and left-out groups.
"""
