"""The full-data posterior: from many short chains that learn a kernel, or from a user's draws.

`full_data` adapts and samples, `draws` measures mixing, `posterior` raises the target acceptance
and falls back on NUTS (`nuts`); `given` checks existing draws, `fit_checks` whether to trust a fit.
"""
