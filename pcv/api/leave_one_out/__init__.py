"""Leave-one-out, or leave-one-group-out, from the full-data fit, with brute force where it fails.

`exact` scores folds by either; `loo` calls it for all, `subsample` for some of them and estimates
the rest, whose sum is a `subsampled` result.
"""
