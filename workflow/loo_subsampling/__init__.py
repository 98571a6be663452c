"""The LOO-SS paper's tables and figure beside ours: `python workflow/loo_subsampling CONFIG`."""
