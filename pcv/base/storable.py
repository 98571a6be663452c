"""Variables of any name in stores, where each array is a folder named after its variable.

A column named ``dose mg/kg`` would be stored in a folder ``dose mg``, and xarray would not find it
again. Such names are percent-encoded in the store; an attribute of the variable holds the true one.
"""

import hashlib
import re
from collections.abc import Hashable, Iterable

import xarray as xr

from pcv.base.errors import PcvError

ATTRIBUTE = "pcv_name"
"""attribute that holds the true name of a variable stored under another"""
TAKEN = ("", "zarr.json", "__values__")
"""reserved names: the empty one, Zarr's metadata file, xarray's name for a nameless variable"""
UNSAFE = re.compile(r"^\.|[/\\\x00-\x1f\x7f]")
"""a leading dot (hidden folders, ``.`` and ``..``), path separators and control characters"""
MAX_BYTES, KEPT = 255, 40
"""maximum length of a folder's name; characters kept of a longer one"""


def storable(data: xr.Dataset) -> xr.Dataset:
    """A dataset with names that can be stored; most stay as they are.

    Raises:
        PcvError: a name is not valid Unicode.

    >>> data = xr.Dataset({"y": ("unit", [1, 2]), "dose mg/kg": ("unit", [3, 4])})
    >>> list(storable(data)), list(true_names(storable(data)))
    (['y', 'dose mg%2Fkg'], ['y', 'dose mg/kg'])
    """
    own = [str(name) for name in data.variables]
    taken = {name for name in own if _is_plain(name)}
    stored = {}
    for name in own:
        if name not in taken:
            stored[name] = next(x for x in _encodings(name) if _is_plain(x) and x not in taken)
            taken.add(stored[name])
    renamed = data.rename(stored)
    for name, short in stored.items():
        renamed.variables[short].attrs[ATTRIBUTE] = name
    return renamed


def check_names(names: Iterable[Hashable]) -> None:
    """Refuse names that cannot be stored.

    Raises:
        PcvError: a name is not valid Unicode.
    """
    for name in names:
        _is_plain(str(name))


def true_names(data: xr.Dataset) -> xr.Dataset:
    """The dataset with the names that it had before `storable`."""
    own = {}
    for name, variable in data.variables.items():
        true = variable.attrs.get(ATTRIBUTE)
        if isinstance(true, str) and name in _encodings(true):  # else renamed since then
            own[name] = true
    named = data.rename(own)
    for true in own.values():
        del named.variables[true].attrs[ATTRIBUTE]
    return named


def _is_plain(name: str) -> bool:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise PcvError(f"the name {name!r} is not valid Unicode; rename it") from None
    return name not in TAKEN and size <= MAX_BYTES and not UNSAFE.search(name)


def _encodings(name: str) -> tuple[str, str]:
    """The name to store under, and a fallback if that is too long or taken."""
    encoded = UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", name)
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return encoded, f"{encoded[:KEPT]}~{digest}"
