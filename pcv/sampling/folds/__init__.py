r"""Warmup and sampling of folds: from draws of the full-data posterior, under its kernel.

A fold that keeps little of the data has a posterior wider than the full-data one, in some
directions more than in others, and the full-data kernel takes small steps there. Its scores in
warmup tell: trajectories are longer where they are autocorrelated (`longer`), and a fold is adapted
where that is not enough (`needs_adapting`, `adapt`): in the coordinates that the kernel whitens, a
scale for each, learnt from all its chains, with a step size and a number of steps.

`moving` advances chains of folds block by block, `warming` and `adapting` are the two above,
`sides` scores full-data draws by each test set, `starting` makes all that sampling begins with, and
`drawing` draws until folds may end.
"""
