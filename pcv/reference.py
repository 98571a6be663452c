"""Where a model comes from: ``package.module:function`` or ``file.py:function``. Loads no JAX."""

import difflib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pcv.errors import PcvError


def _split(reference: str) -> tuple[str, str]:
    place, colon, function = reference.rpartition(":")
    if not colon or not place or not function:
        raise PcvError(
            f"model '{reference}': write 'package.module:function' or 'file.py:function'"
        )
    return place, function


def source(reference: str) -> Path:
    """The file that a model is written in.

    >>> source("pcv.zoo.rats:random_slopes").name
    'rats.py'

    Raises:
        PcvError: there is no such file or module.
    """
    place, _ = _split(reference)
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise PcvError(
                f"model '{reference}': no file '{place}' (paths are relative to {Path.cwd()})"
            )
        return path
    try:
        spec = importlib.util.find_spec(place)
    except ImportError:
        spec = None
    if spec is None or spec.origin is None:
        raise PcvError(f"model '{reference}': no module '{place}' in this environment")
    return Path(spec.origin)


def load(reference: str) -> Callable[..., Any]:
    """The function that builds a model from data and arguments.

    Raises:
        PcvError: the file does not import (with its own error and line), or has no such function.
    """
    place, function = _split(reference)
    path = source(reference)
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(f"_pcv_{path.stem}", path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            sys.path.insert(0, str(path.parent.resolve()))
            try:
                spec.loader.exec_module(module)
            finally:
                sys.path.pop(0)
        else:
            module = importlib.import_module(place)
    except Exception as error:
        raise PcvError(
            f"model '{reference}': {path} does not import{_line(error, path)}: "
            f"{type(error).__name__}: {error}"
        ) from error
    found = getattr(module, function, None)
    if not callable(found):
        names = [n for n, x in vars(module).items() if callable(x) and not n.startswith("_")]
        near = difflib.get_close_matches(function, names, 1)
        raise PcvError(
            f"model '{reference}': {path} has no function '{function}'"
            + (f"; did you mean '{near[0]}'?" if near else "")
        )
    return found


def build(reference: str, data: Any, args: dict[str, Any]) -> Any:
    """Call the function of a reference on the data and its arguments from the config."""
    make = load(reference)
    try:
        return make(data, **args)
    except Exception as error:
        given = ", ".join(f"{name}={value!r}" for name, value in args.items())
        raise PcvError(
            f"model '{reference}': calling it with the data and ({given}) failed"
            f"{_line(error, source(reference))}: {type(error).__name__}: {error}"
        ) from error


def _line(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError):
        return f" (line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if Path(f.filename).resolve() == path.resolve()]
    return f" (line {lines[-1]})" if lines else ""
