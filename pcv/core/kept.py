"""What is derived from a model, such as its compiled programs, kept for the next call.

Another seed, other folds of the same size and other settings then trace nothing. Entries belong to
the model object itself, never to one that is equal to it, and to the data that they were made from.
Where an array that a program holds has been changed in place, the model's entries are dropped.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pcv.compile.programs import Held

MOST = 200
"""entries in memory, by last use"""
Key = tuple[int, str, Hashable, Hashable]
_entries: OrderedDict[Key, tuple[Any, Any]] = OrderedDict()
_held: "dict[int, Held]" = {}
"""arrays that a model's programs hold, by the model's id"""


def kept(model: Any, data: str, what: Hashable, make: Callable[[], Any]) -> Any:
    """Return `make()`, or what it returned before.

    Args:
        model: the object that the result is derived from.
        data: fingerprint of the data that it is derived from.
        what: name of the result, and all else that it depends on. Precision and devices count too.
        make: computes it.
    """
    import jax

    from pcv.base.devices import in_use
    from pcv.compile import programs

    owner = id(model)
    held = _held.setdefault(owner, {})
    programs.record_arrays(held)
    where = bool(jax.config.jax_enable_x64), *(device.id for device in in_use())
    key = owner, data, where, what
    if key not in _entries:
        _entries[key] = model, make()  # the model stays alive with its id
    _entries.move_to_end(key)
    while len(_entries) > MOST:
        (dropped, *_), _ = _entries.popitem(last=False)
        if all(other[0] != dropped for other in _entries):
            _held.pop(dropped, None)
    return _entries[key][1]


def drop_changed(model: Any) -> None:
    """Drop what is kept of a model if an array that its programs hold has changed."""
    from pcv.compile import programs

    owner = id(model)
    held = _held.get(owner, {})
    arrays = {place: (array(), before) for place, (array, before) in held.items()}
    for place in [place for place, (x, _) in arrays.items() if x is None]:
        del held[place]
    if any(x is not None and programs.array_digest(x) != before for x, before in arrays.values()):
        del _held[owner]
        for key in [key for key in _entries if key[0] == owner]:
            del _entries[key]


def fingerprint(arrays: Mapping[str, Any]) -> str:
    """A hash of arrays with their names, shapes and types."""
    from pcv.compile import programs

    total = blake2b(digest_size=16)
    for name, x in sorted(arrays.items()):
        total.update(f"{name} {programs.array_digest(np.asarray(x))} ".encode())
    return total.hexdigest()
