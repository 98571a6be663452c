"""Variables of any name in stores, whose arrays are folders of that name.

A column may be called ``dose mg/kg``, which Zarr takes for a folder ``dose mg`` and xarray never
finds again. Such names are percent-encoded where they are stored, and an attribute of the variable
holds the true one.
"""

import hashlib
import re

import xarray as xr

from pcv.base.errors import PcvError

ATTRIBUTE = "pcv_name"
"""of a variable that is stored under another name than its own: the true one"""
TAKEN = ("", "zarr.json", "__values__")
"""no folder, a file of Zarr's in the same place, and xarray's word for a variable without a name"""
UNSAFE = re.compile(r"^\.|[/\\\x00-\x1f\x7f]")
"""what hides folders, means the present one or divides them, and control characters"""
MAX_BYTES, KEPT = 255, 40
"""of a folder's name; characters of a longer one that are kept"""


def storable(data: xr.Dataset) -> xr.Dataset:
    """A dataset whose names can be stored; most stay as they are.

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


def true_names(data: xr.Dataset) -> xr.Dataset:
    """The same dataset with the names that it had before `storable`."""
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
    """What a name is stored as; and what it is if that will not do, or is another's name."""
    encoded = UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", name)
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return encoded, f"{encoded[:KEPT]}~{digest}"
