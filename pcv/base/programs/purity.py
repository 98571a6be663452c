"""Which functions of Python give the same whenever they are called?

Those of the user that use nothing else, and those of packages that compute; by their names, so that
what lies outside the process (files, time, what is random) is not read or called by them.
"""

import dis
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

PURE = {
    *("pcv", "jax", "jaxlib", "numpyro", "numpy", "scipy", "jaxtyping", "math", "builtins"),
    *("functools", "itertools", "operator", "collections", "copyreg", "typing", "types", "enum"),
    *("abc", "dataclasses"),
}
"""packages whose functions give the same for the same, but for those of these names:"""
UNREAD = {
    *("__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__hash__"),
    *("__firstlineno__", "__static_attributes__", "__signature__"),
    *("__orig_bases__", "__slotnames__", "_abc_impl"),
}
"""members of classes that say how they were written, or are of each object: not read of them"""
IMPURE = {
    *("load", "loadtxt", "genfromtxt", "fromregex", "fromfile", "memmap", "loadmat", "load_npz"),
    *("mmread", "load_dataset", "globals", "eval", "exec", "open", "input", "__import__", "rvs"),
    *("hash", "locals", "id", "__subclasses__", "__globals__", "__code__", "f_code", "gi_code"),
    *UNREAD,
}


def names_in(code: CodeType) -> set[str]:
    """That a function and those inside it use."""
    return {*code.co_names}.union(*map(names_in, _inside(code)))


def _inside(code: CodeType) -> list[CodeType]:
    return [x for x in code.co_consts if isinstance(x, CodeType)]


def is_steady(code: CodeType, names: set[str], used: Mapping[str, Any]) -> bool:
    """Does a function give the same whenever it is called, by the names that it uses?"""
    imported = _imported(code)
    modules = [x.__name__ for x in used.values() if isinstance(x, ModuleType)]
    by_numpy = "numpy" in modules or any(x.split(".")[0] == "numpy" for x in imported)
    drawn = ("random" in names and by_numpy) or "numpy.random" in modules
    return not drawn and not names & IMPURE and all(map(is_pure, imported))


@cache
def _imported(code: CodeType) -> set[str]:
    """Modules that a function and those inside it import as they are called."""
    own = {x.argval for x in dis.get_instructions(code) if x.opname == "IMPORT_NAME"}
    return own.union(*map(_imported, _inside(code)))


def is_pure(module: str) -> bool:
    package, *_ = module.split(".")  # some modules of compiled classes are none
    return package in PURE and not module.startswith("numpy.random") and is_library(package)


def named(x: Any) -> bool:
    """Is it what its module has under its name?"""
    place: Any = sys.modules.get(x.__module__)
    for part in getattr(x, "__qualname__", getattr(x, "__name__", "")).split("."):
        place = getattr(place, part, None)
    return place is x


@cache
def is_library(module: str) -> bool:
    """Installed, or Python's own: not what a user goes on writing."""
    if module == "__main__" or module not in sys.modules:
        return False
    if module.split(".")[0] in ("pcv", *sys.builtin_module_names):
        return True
    file = getattr(sys.modules[module], "__file__", None)
    paths = sysconfig.get_paths()
    places = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return bool(file) and any(Path(str(file)).is_relative_to(place) for place in places)
