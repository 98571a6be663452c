"""Which Python functions are pure: same result whenever they are called.

Judged by names: users' functions that use only pure ones, and those of numerical packages except
names that reach outside the process (files, time, randomness).
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
"""packages whose functions are pure, except for the names in `IMPURE`"""
UNREAD = {
    *("__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__hash__"),
    *("__firstlineno__", "__static_attributes__", "__signature__"),
    *("__orig_bases__", "__slotnames__", "_abc_impl"),
}
"""class members on how the class was written, or specific to an object: not digested"""
IMPURE = {
    *("load", "loadtxt", "genfromtxt", "fromregex", "fromfile", "memmap", "loadmat", "load_npz"),
    *("mmread", "load_dataset", "globals", "eval", "exec", "open", "input", "__import__", "rvs"),
    *("hash", "locals", "id", "__subclasses__", "__globals__", "__code__", "f_code", "gi_code"),
    *UNREAD,
}


def names_in(code: CodeType) -> set[str]:
    """Names used by a function and by those nested in it."""
    return {*code.co_names}.union(*map(names_in, _inside(code)))


def _inside(code: CodeType) -> list[CodeType]:
    return [x for x in code.co_consts if isinstance(x, CodeType)]


def is_steady(code: CodeType, names: set[str], used: Mapping[str, Any]) -> bool:
    """Whether a function is pure, judged by the names that it uses."""
    imported = _imported(code)
    modules = [x.__name__ for x in used.values() if isinstance(x, ModuleType)]
    by_numpy = "numpy" in modules or any(x.split(".")[0] == "numpy" for x in imported)
    drawn = ("random" in names and by_numpy) or "numpy.random" in modules
    return not drawn and not names & IMPURE and all(map(is_pure, imported))


@cache
def _imported(code: CodeType) -> set[str]:
    """Modules that a function and those nested in it import when called."""
    own = {x.argval for x in dis.get_instructions(code) if x.opname == "IMPORT_NAME"}
    return own.union(*map(_imported, _inside(code)))


def is_pure(module: str) -> bool:
    package, *_ = module.split(".")  # compiled classes may name no module
    return package in PURE and not module.startswith("numpy.random") and is_library(package)


def named(x: Any) -> bool:
    """Whether an object is found under its qualified name."""
    place: Any = sys.modules.get(x.__module__)
    for part in getattr(x, "__qualname__", getattr(x, "__name__", "")).split("."):
        place = getattr(place, part, None)
    return place is x


@cache
def is_library(module: str) -> bool:
    """Whether a module is installed or built in, rather than code a user is editing."""
    if module == "__main__" or module not in sys.modules:
        return False
    if module.split(".")[0] in ("pcv", *sys.builtin_module_names):
        return True
    file = getattr(sys.modules[module], "__file__", None)
    paths = sysconfig.get_paths()
    places = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return bool(file) and any(Path(str(file)).is_relative_to(place) for place in places)
