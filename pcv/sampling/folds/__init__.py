r"""Warmup and sampling of folds, starting from full-data draws and using the full-data kernel.

The posterior of a fold that keeps little data is wider than the full-data one, more so in some
directions, and the full-data kernel takes small steps there. Scores in warmup show it: where they
are autocorrelated, trajectories become longer (`longer`); where that is not enough, or proposals
are refused, the fold is adapted (`needs_adapting`, `adapt`): it gets a scale for each whitened
coordinate, a step size and a number of steps, learnt from all its chains.

`moving` advances chains block by block, `lasting` says for how long, `warming` and `adapting` do
the above, `sides` scores full-data draws on each test set, `starting` is the warmup as a whole, and
`drawing` samples until folds may stop.
"""
