"""A whole result on disk: what `CV.save` writes and `pcv.load` reads."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr

from pcv.base.errors import PcvError, in_one_line
from pcv.base.storable import true_names
from pcv.pipeline.storage import store

ADDED = (
    "joint_mcse_is_bound",
    "pointwise_mcse_is_bound",
    "units_verdict",
    "integration",
    "overlap",
    "rhat_is_nested",
    "given_tested",
)
"""diagnostics variables and attributes that results of earlier versions lack"""
DIGEST = "digest_of_values_and_attributes"


def write(path: str | Path, tree: xr.DataTree) -> None:
    tree.attrs[DIGEST] = digest(tree)
    try:
        if store.exists(path) and not _is_saved(path):
            raise PcvError(
                f"{path}: something else is there, and is not overwritten; choose another path"
            )
        store.put(path, tree, mode="w")
    except OSError as error:
        said = f"cannot be saved here ({error.strerror or error}); choose another path"
        raise PcvError(f"{path}: {said}") from error


def read(path: str | Path) -> xr.DataTree:
    if not store.exists(path):
        raise PcvError(f"{path}: not found")
    if not _is_saved(path):
        raise PcvError(f"{path}: not a saved cross-validation (CV.save)")
    damaged = f"{path}: damaged; restore it from a copy, or cross-validate again"
    try:
        tree = xr.open_datatree(path, engine="zarr", consolidated=True).load()
        written = tree.attrs.pop(DIGEST, None)
        found = digest(tree)
    except Exception as error:  # Zarr raises many kinds
        raise PcvError(f"{damaged} ({in_one_line(error)})") from error
    diagnosed = tree["diagnostics"].dataset
    missing = [name for name in ADDED if name not in diagnosed and name not in diagnosed.attrs]
    missing += [DIGEST] * (written is None)
    if missing:
        raise PcvError(
            f"{path}: saved by an earlier version of pcv, without {missing[0]}; cross-validate"
            " again, or open it with xarray.open_datatree"
        )
    if written != found:
        raise PcvError(f"{damaged} (its content does not match its digest)")
    return tree


def digest(tree: xr.DataTree) -> str:
    """A hash of all values of a tree and its groups' attributes: Zarr silently reads lost chunks as
    zeros or NaN, and attributes hold warnings."""
    total = hashlib.sha256()
    for node in sorted(tree.subtree, key=lambda node: node.path):  # as Zarr lists them
        named = true_names(node.to_dataset(inherit=False)).variables
        attrs = {key: _in_json(x) for key, x in node.attrs.items()}
        total.update(json.dumps([node.path, attrs], sort_keys=True).encode())
        for name in sorted(named, key=str):
            x = np.asarray(named[name].values)
            total.update(f"{node.path} {name} {x.shape} ".encode())
            if x.dtype.kind in "fc":  # Zarr keeps neither -0 nor signs of NaN
                total.update(np.ascontiguousarray(np.where(np.isnan(x), np.nan, x + 0)).tobytes())
            elif x.dtype.kind in "biu":
                total.update(np.ascontiguousarray(x).tobytes())
            else:
                total.update("\0".join(map(str, x.ravel().tolist())).encode())
    return total.hexdigest()


def _in_json(x: Any) -> Any:
    """An attribute as Zarr returns it."""
    return np.asarray(x).tolist() if isinstance(x, np.ndarray | np.generic) else x


def _is_saved(path: str | Path) -> bool:
    try:
        group = zarr.open_group(path, mode="r")
        return "joint" in group.attrs and "diagnostics" in group
    except (OSError, ValueError, LookupError, TypeError):
        return False
