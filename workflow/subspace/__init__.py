"""The page of cross-validation on a subspace: the paper's numbers beside ours."""
