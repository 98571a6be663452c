"""Folds: which units each tests, and which it leaves out of training.

`base` defines the type. A scheme is a function that returns `Folds`, in `exchangeable`, `time`,
`space` or `splitters`, and a class in `schemes` with its config keys. `checks` validates arguments
and folds; `columns` reads the data's columns and formats values.

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
