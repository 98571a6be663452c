"""Where a model comes from: ``package.module:function``, ``file.py:function``, or ``file.stan``.
Loads no JAX."""

import ast
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pcv.base.errors import PcvError, in_one_line, nearest
from pcv.base.section import PROGRAM

_IMPORTED: dict[str, tuple[Any, bytes]] = {}
"""by module: what tells one import of it from the next, and the content of its file then"""


INCLUDE = re.compile(r'^[ \t]*#include[ \t]*(?:<([^>\n]*)>|"([^"\n]*)"|(\S+))', re.MULTILINE)
"""how a program of Stan includes a file"""


def is_program(reference: str) -> bool:
    """Whether a model is a program of Stan."""
    return re.match(PROGRAM, reference) is not None


def _split(reference: str) -> tuple[str, str]:
    place, colon, function = reference.rpartition(":")
    if not colon or not place or not function:
        raise PcvError(
            f"model '{reference}': write 'package.module:function' or 'file.py:function'"
        )
    return place, function


def source(reference: str) -> Path:
    """The file that defines a model.

    >>> source("pcv.models.zoo.rats:random_slopes").name
    'rats.py'

    Raises:
        PcvError: there is no such file or module, or its package fails to import.
    """
    place = reference if is_program(reference) else _split(reference)[0]
    if place.endswith((".py", ".stan")):
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
        function = _split(reference)[1]
        hint = f"; for your own file write '{file}:{function}'" if Path(file).is_file() else ""
        if place.split(".")[0] == "sklearn":
            hint = "; add scikit-learn to it: `pip install scikit-learn`"
        raise PcvError(f"model '{reference}': no module '{place}' in this environment{hint}")
    return Path(spec.origin)


def sources(reference: str) -> list[Path]:
    """The file that defines a model, then the neighbouring files that it imports.

    >>> [path.name for path in sources("pcv.models.zoo.rats:random_slopes")]
    ['rats.py']

    Raises:
        PcvError: as for `source`.
    """
    found = [source(reference)]
    if is_program(reference):
        for file in found:
            found += [path for path in _included(file, found[0].parent) if path not in found]
        return found
    if _split(reference)[0].endswith(".py"):
        for file in found:
            found += [path for path in _imported(file, found[0].parent) if path not in found]
    return found


def _included(file: Path, folder: Path) -> Iterator[Path]:
    """Files that a file of a program includes, beside it or in the program's folder."""
    for names in INCLUDE.findall(file.read_text(encoding="utf-8", errors="replace")):
        name = next(filter(None, names)).lstrip("/")
        yield from {path for path in (file.parent / name, folder / name) if path.is_file()}


def _imported(file: Path, folder: Path) -> Iterator[Path]:
    """Files in a folder that one of its files imports."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return  # `load` says so
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            base, modules = folder, [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = file.parents[node.level - 1] if node.level else folder
            dot = "." if node.module else ""
            modules = [f"{node.module or ''}{dot}{alias.name}" for alias in node.names]
        else:
            continue
        for module in modules:
            place = base
            for part in module.split("."):
                place = place / part
                for path in (place.with_name(f"{part}.py"), place / "__init__.py"):
                    if path.is_file():
                        yield path


@contextmanager
def _importing(reference: str) -> Iterator[None]:
    """Let a model's file import its neighbours, which are then unloaded: those of other files may
    have the same names."""
    place = _split(reference)[0]
    if not place.endswith(".py"):
        yield
        return
    neighbours = {str(path.resolve()) for path in sources(reference)[1:]}
    for file in neighbours:  # stored bytecode counts by time and size, not by content
        with suppress(OSError):
            Path(importlib.util.cache_from_source(file)).unlink()
    sys.path.insert(0, str(Path(place).parent.resolve()))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.pop(0)
        for name, module in list(sys.modules.items()):
            if getattr(module, "__file__", None) in neighbours:
                del sys.modules[name]


def load(reference: str) -> Callable[..., Any]:
    """The function that builds a model from data and arguments.

    Raises:
        PcvError: the file fails to import (with its error and line), or has no such function; or
            that of a module has changed since this process loaded it.
    """
    place, function = _split(reference)
    path = source(reference)
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(f"_pcv_{path.stem}", path)
            assert spec is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            # Of the file itself, not of stored bytecode.
            code = compile(path.read_bytes(), str(spec.origin), "exec", dont_inherit=True)
            with _importing(reference):
                exec(code, vars(module))
        else:
            module = importlib.import_module(place)
    except (Exception, SystemExit) as error:
        raise _does_not_import(reference, path, error) from error
    if not place.endswith(".py") and path.is_file():
        this = getattr(module, "__spec__", None), path.read_bytes()
        first = _IMPORTED.setdefault(place, this)
        if first[0] is not this[0]:
            _IMPORTED[place] = this
        elif first[1] != this[1]:
            raise PcvError(
                f"model '{reference}': {path} has changed since it was first loaded; "
                "start a new process"
            )
    found = getattr(module, function, None)
    if not callable(found):
        public = {n: x for n, x in vars(module).items() if callable(x) and n[0] != "_"}
        own = [n for n, x in public.items() if getattr(x, "__module__", "") == module.__name__]
        raise _has_no(reference, path, own or list(public))
    return found


def check(reference: str) -> None:
    """Check, without running the file of a reference, that it defines the function.

    Raises:
        PcvError: as for `source`, or the name is missing.
    """
    path = source(reference)
    if is_program(reference):
        return
    function = _split(reference)[1]
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # `load` says so
    names, functions = set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
            functions += [node.name] if node in tree.body else []
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
        elif isinstance(node, ast.Name):
            names.add(node.id)
    if not names & {function, "*", "__getattr__", "globals", "vars"}:
        raise _has_no(reference, path, functions)


def _has_no(reference: str, path: Path, functions: list[str]) -> PcvError:
    function = _split(reference)[1]
    hint = nearest(function, functions, f"it has {', '.join(functions[:9]) or 'none'}")
    return PcvError(f"model '{reference}': {path} has no function '{function}'; {hint}")


def build(reference: str, data: Any, args: dict[str, Any]) -> Any:
    """Call the function of a reference on the data and its arguments from the config.

    Raises:
        PcvError: as for `load`, or the call fails (with its error and line).
    """
    make = load(reference)
    try:
        with _importing(reference):
            return make(data, **args)
    except Exception as error:
        call = ", ".join(["data", *(f"{name}={value!r}" for name, value in args.items())])
        hint = f"; the data have {', '.join(data)}" if isinstance(error, KeyError) else ""
        kinds = {name: getattr(getattr(x, "dtype", None), "kind", "") for name, x in data.items()}
        text = [name for name, kind in kinds.items() if kind in tuple("OSTUMm")]
        if text and "as a JAX value" in str(error):
            hint = (
                f"; recode {' and '.join(text)} as numbers, for example by"
                " np.unique(…, return_inverse=True)[1]"
            )
        said = str(error) if isinstance(error, PcvError) else in_one_line(error)
        raise PcvError(
            f"model '{reference}': {_split(reference)[1]}({call}) fails"
            f"{_line(error, source(reference))}: {said}{hint}"
        ) from error


def call(reference: str, args: dict[str, Any]) -> Any:
    """Call the class or function of a reference with its arguments from the config.

    >>> call("fractions:Fraction", {"numerator": 1, "denominator": 2})
    Fraction(1, 2)

    Raises:
        PcvError: as for `load`, or the call fails.
    """
    try:
        made = load(reference)
    except PcvError as error:
        raise PcvError(str(error).removeprefix("model ")) from error
    given = ", ".join(f"{name}={value!r}" for name, value in args.items())
    with naming(reference, f"{_split(reference)[1]}({given})"):
        return made(**args)


@contextmanager
def naming(reference: str, what: str) -> Iterator[None]:
    """Errors of the user's code say which call failed, and at which line."""
    try:
        yield
    except PcvError:
        raise
    except Exception as error:
        raise PcvError(
            f"'{reference}': {what} fails{_line(error, source(reference))}: {in_one_line(error)}"
        ) from error


def _does_not_import(reference: str, place: str | Path, error: BaseException) -> PcvError:
    at = "" if isinstance(error, SyntaxError) else _line(error, Path(place))  # has its line
    return PcvError(f"model '{reference}': {place} fails to import{at}: {in_one_line(error)}")


def _line(error: BaseException, path: Path) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if Path(f.filename).resolve() == path.resolve()]
    return f" (line {lines[-1]})" if lines else ""
