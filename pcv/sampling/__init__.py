"""MCMC for the full data and all folds, by one compiled program.

`hmc` draws one block of one chain; `tiles` runs any number of chains, a fixed number at a time;
`kernel` is the metric learnt from pooled draws, `scoring` and `accumulate` sum scores over draws,
`memory` says how many chains fit. `fit` and `folds` build on these: the full data is
the fold that holds nothing out. Nothing here knows of files or configs.
"""
