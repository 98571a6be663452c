"""Parts of the schemes in `pcv.folds.schemes`: the base of all, coordinates, and subsamples."""
