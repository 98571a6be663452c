"""Folds: which units are tested, and which are left out of training for it.

`base` has the type, `schemes` what a user calls from Python, `sections` what a config may say and
`making` what follows from it; a scheme is a function that returns `Folds`, in `exchangeable`,
`groups`, `time` and `space`. Units, their columns and names are in `columns`.

>>> import numpy as np
>>> from pcv.folds.base import describe, train_mask
>>> from pcv.folds.groups import leave_one_group_out
>>> folds = leave_one_group_out(np.array([1, 1, 2, 2, 3]), "rat")
>>> folds.id.tolist()
['rat 1', 'rat 2', 'rat 3']
>>> folds.test.tolist()
[[0, 1], [2, 3], [4, -1]]
>>> train_mask(folds, 5)[0].tolist()
[False, False, True, True, True]
>>> describe(folds, 5)
'3 folds, test 1 to 2, training 3 to 4, no gap'
"""
