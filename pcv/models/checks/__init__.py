"""What can be known of a model before sampling: is it what it must be, and does it fit its data?

`shapes` traces its functions without running them; `values` looks at densities and gradients at
prior draws, `slopes` whether the gradients are derivatives; `prior` compares draws with the prior
density, and `folds` looks at what is left out.
"""
