"""Folds: which units are tested, and which are left out of training for it.

`base` has the type. A scheme is a function that returns it, in `exchangeable`, `time`, `space` or
`splitters`, and a class in `schemes` with what a config may say of it. `checks` has what is asked
of arguments and of folds, `columns` the data's columns and how values are written.

>>> import numpy as np
>>> from pcv.folds.base import describe, train_mask
>>> from pcv.folds.exchangeable import leave_one_group_out
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
