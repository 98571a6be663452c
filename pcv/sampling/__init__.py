"""Chains of all folds, and of the full data, by one compiled program.

`hmc` is one block of draws of one chain; `tiles` makes it any number of chains, a fixed number at a
time; `kernel` is what chains learn from their pooled draws. `fit` and `folds` are calls of
these: the full data is the fold that holds nothing out. Nothing here knows files or configs.
"""
