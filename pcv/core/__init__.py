"""The method: functions from a `Problem` and settings to fits, warmups, samples and diagnostics.

`cross_validate` composes them. They know no config file, no folder and no checkpoint; a store of
artifacts and of blocks of draws can be passed to them.
"""
