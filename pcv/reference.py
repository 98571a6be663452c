"""Where a model comes from: ``package.module:function`` or ``file.py:function``. Loads no JAX."""

import difflib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pcv.errors import PcvError, in_one_line


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
        PcvError: there is no such file or module, or the module's package does not import.
    """
    place, function = _split(reference)
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise PcvError(
                f"model '{reference}': no file '{place}' (paths are relative to {Path.cwd()})"
            )
        return path
    try:
        spec = importlib.util.find_spec(place)
    except ModuleNotFoundError as error:
        if not f"{place}.".startswith(f"{error.name}."):
            raise _does_not_import(reference, place, error) from error
        spec = None
    except Exception as error:
        raise _does_not_import(reference, place, error) from error
    if spec is None or spec.origin is None:
        file = place.replace(".", "/") + ".py"
        hint = f"; for your own file write '{file}:{function}'" if Path(file).is_file() else ""
        raise PcvError(f"model '{reference}': no module '{place}' in this environment{hint}")
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
    except (Exception, SystemExit) as error:
        raise _does_not_import(reference, path, error) from error
    found = getattr(module, function, None)
    if not callable(found):
        own = [
            name
            for name, x in vars(module).items()
            if callable(x) and getattr(x, "__module__", "") == module.__name__ and name[0] != "_"
        ]
        near = difflib.get_close_matches(function, own, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(own[:9]) or 'none'}"
        raise PcvError(f"model '{reference}': {path} has no function '{function}'; {hint}")
    return found


def build(reference: str, data: Any, args: dict[str, Any]) -> Any:
    """Call the function of a reference on the data and its arguments from the config.

    Raises:
        PcvError: as for `load`, or the call fails (with its own error and line).
    """
    make = load(reference)
    try:
        return make(data, **args)
    except Exception as error:
        call = ", ".join(["data", *(f"{name}={value!r}" for name, value in args.items())])
        hint = f"; the data have {', '.join(data)}" if isinstance(error, KeyError) else ""
        raise PcvError(
            f"model '{reference}': called as {_split(reference)[1]}({call}) it fails"
            f"{_line(error, source(reference))}: {in_one_line(error)}{hint}"
        ) from error


def _does_not_import(reference: str, place: str | Path, error: BaseException) -> PcvError:
    at = "" if isinstance(error, SyntaxError) else _line(error, Path(place))  # it says so itself
    return PcvError(f"model '{reference}': {place} does not import{at}: {in_one_line(error)}")


def _line(error: BaseException, path: Path) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if Path(f.filename).resolve() == path.resolve()]
    return f" (line {lines[-1]})" if lines else ""
