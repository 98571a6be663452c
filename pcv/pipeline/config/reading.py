"""Reading a config from YAML; errors are one line for each problem."""

import difflib
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pcv.analysis.stopping.config import UntilConfig
from pcv.base.errors import PcvError, is_python, nearest
from pcv.base.section import LOG_LIK, NAME, DecideConfig
from pcv.core.settings import KernelConfig, LeadingConfig
from pcv.folds.schemes import SCHEMES
from pcv.folds.sections.coordinates import Coordinates
from pcv.folds.sections.subsampling import GrowConfig
from pcv.pipeline.config.sections import Config, Experiment, ModelConfig


def _shown(value: object) -> str:
    if value is None:
        return "None" if is_python() else "empty"
    if isinstance(value, dict | list):
        kind = "list" if isinstance(value, list) else "dict" if is_python() else "section"
        return f"a {kind}" if value else f"an empty {kind}"
    if isinstance(value, str):
        return repr(value)
    known = isinstance(value, bool | int | float | date)
    return str(value).lower() if known else f"a {type(value).__name__}"


def _section(path: tuple[str | int, ...]) -> type[BaseModel]:
    """The class of the section at a path."""
    match path:
        case ("experiments", _):
            return Experiment
        case ("experiments", _, "models", _):
            return ModelConfig
        case ("experiments", _, "folds", str(scheme)):
            return SCHEMES[scheme]
        case ("experiments", _, "folds", _, "coordinates"):
            return Coordinates
        case ("experiments", _, "folds", _, "until"):
            return GrowConfig
        case ("experiments", _, "kernel"):
            return KernelConfig
        case ("experiments", _, "kernel", "subspace"):
            return LeadingConfig
        case ("experiments", _, "cv", "until"):
            return UntilConfig
        case ("experiments", _, *_, "until", "decide"):
            return DecideConfig
        case ("experiments", _, str(key)):
            return Experiment.model_fields[key].annotation  # type: ignore[return-value]
    return Config


SECTION = "a section (lines of key: value)"
IN_PYTHON = {SECTION: "a dict", "true or false": "True or False"}
"""types that have another name in Python"""
EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list such as [a, b]",
    "dict_type": SECTION,
    "model_type": SECTION,
    "model_attributes_type": SECTION,
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "greater_than": "above {gt}",
    "less_than": "below {lt}",
    "multiple_of": "a multiple of {multiple_of}",
    "literal_error": "{expected}",
    "string_pattern_mismatch": "package.module:function or file.py:function",
}


def _in_words(error: ErrorDetails, kind: type[BaseModel] = Config) -> PcvError:
    """A pydantic error in plain words: key path, what is wrong, what to do."""
    path, value, context = error["loc"], error["input"], error.get("ctx", {})
    remedy = ""
    if path[2:3] == ("folds",):
        path = path[:3] + path[4:]  # without the scheme's name, which pydantic inserts
    match error["type"]:
        case "extra_forbidden" | "invalid_key":
            path = (*path[:-1], str(path[-1]))
            what = "unknown key"
            if kind is Config:
                what += f"; {nearest(str(path[-1]), _section(error['loc'][:-1]).model_fields)}"
        case "missing":
            what = "missing; add it"
        case "too_short" | "string_too_short":
            what = "is empty; fill it in"
        case "union_tag_not_found":
            what = f"missing; add one of {', '.join(SCHEMES)}"
            if near := difflib.get_close_matches("scheme", map(str, value), 1):
                what += f" (for {near[0]!r}, which is unknown?)"
            path += ("scheme",)
        case "union_tag_invalid":
            what = f"unknown scheme {value['scheme']!r}; {nearest(str(value['scheme']), SCHEMES)}"
            path += ("scheme",)
        case "string_pattern_mismatch" if context["pattern"] == NAME:
            allowed = "letters a to z, digits, '_' and '-', and no '-' in front"
            what = f"names have only {allowed}; rename it"
        case "string_too_long":
            what = f"has {len(value)} letters, more than {context['max_length']}: shorten it"
            value = f"{value[:20]}…"
        case "config":
            what = context["what"]
            path += context["at"]
        case "string_pattern_mismatch" if LOG_LIK in context["pattern"]:
            known = "package.module:function, file.py:function"
            what = f"must be {known} or a .parquet, .csv or .nc file, is {_shown(value)}"
        case type_ if type_ in EXPECTED:
            instead = f" or {context['instead']}" if "instead" in context else ""
            expected = EXPECTED[type_].format(**context)
            if is_python():
                expected = IN_PYTHON.get(expected, expected)
            what = f"must be {expected}{instead}, is {_shown(value)}"
            remedy = "" if is_python() else _remedy_in_yaml(type_, value)
        case _:
            what = error["msg"]
    if path[-1:] == ("[key]",):
        path = (*path[:-2], _shown(value))
    if is_python() and path[:1] == ("experiments",):
        path = path[2:]
    return PcvError(what, path, remedy, error["type"])


def _remedy_in_yaml(kind: str, value: object) -> str:
    """What to do about a value that YAML reads as another type than is meant."""
    if kind == "string_type" and isinstance(value, bool | int | float):
        return "put it in quotes"
    if EXPECTED[kind] == SECTION and value is None:
        return "write {} for one without keys"
    if kind in ("int_type", "float_type") and isinstance(value, str):
        return "write numbers without quotes, exponents as in 1.0e-3"
    return ""


def _one_each(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Errors with those of a "number or word" union merged into one."""
    kept: dict[tuple[int | str, ...], ErrorDetails] = {}
    for i, error in enumerate(errors):
        tag = str(error["loc"][-1]) if error["loc"] else ""
        if tag not in ("int", "constrained-int") and not tag.startswith("literal["):
            kept[*error["loc"], i] = error
        elif (place := error["loc"][:-1]) not in kept:
            kept[place] = {**error, "loc": place}
        else:
            instead = error.get("ctx", {}).get("expected", "")
            kept[place]["ctx"] = {**kept[place].get("ctx", {}), "instead": instead}
    return list(kept.values())


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys in a section, where YAML would silently take the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        first: dict[str, int] = {}
        for key, _ in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in first:
                raise PcvError(
                    f"line {line}: the key {name!r} is given twice in one section,"
                    f" first on line {first[name]}; keep one"
                )
            first[name] = line
        return node


def parse(mapping: Mapping[str, Any], source: str = "config") -> Config:
    """Validate a config that is already read, such as Snakemake's.

    Args:
        mapping: the config as nested dicts and lists.
        source: its name in messages, such as the file's.

    Raises:
        PcvError: one line per problem: source, key path, what is wrong, what to do.

    >>> parse({"seed": -1, "experimnts": {}})
    Traceback (most recent call last):
    pcv.base.errors.PcvError: config: seed: must be at least 0, is -1
    config: experiments: missing; add it
    config: experimnts: unknown key; did you mean 'experiments'?
    """
    return validated(Config, mapping, source)


def validated[T: BaseModel](kind: type[T], mapping: Mapping[str, Any], source: str) -> T:
    """A mapping as a config of some kind; raises as `parse` does."""
    try:
        return kind.model_validate(plain_numbers(dict(mapping)))
    except ValidationError as error:
        problems = [_in_words(detail, kind) for detail in _one_each(error.errors())]
        prefix = "" if is_python() else f"{source}: "
        raise PcvError("\n".join(f"{prefix}{problem}" for problem in problems)) from None


def plain_numbers(x: Any) -> Any:
    """Settings with NumPy's numbers as Python's. Loads no NumPy."""
    if type(x).__module__ == "numpy" and hasattr(x, "item") and not getattr(x, "shape", None):
        return x.item()
    if isinstance(x, Mapping):
        return {key: plain_numbers(value) for key, value in x.items()}
    return [plain_numbers(value) for value in x] if isinstance(x, list) else x


def load(path: Path) -> Config:
    """Read and validate a YAML config.

    Raises:
        PcvError: as `read` and `parse`.
    """
    return parse(read(path), str(path))


def read(path: Path) -> dict[str, Any]:
    """The sections of a YAML file.

    Raises:
        PcvError: no such file, invalid YAML (with the line), a duplicate key, or an empty file.
    """
    try:
        content = yaml.load(path.read_bytes().decode("utf-8-sig"), _Loader)
    except PcvError as error:
        raise PcvError(f"{path}: {error}") from None
    except OSError as error:
        why = error.strerror
        raise PcvError(f"{path}: cannot be read ({why}); give the path of a YAML file") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise PcvError(
            f"{path}: line {line}: not valid YAML ({error.problem}); check colons, quotes and"
            " indentation (spaces, no tabs) on this line and the ones before"
        ) from None
    except RecursionError:
        raise PcvError(f"{path}: sections are nested too deep to be read") from None
    except (UnicodeDecodeError, yaml.reader.ReaderError) as error:
        raise PcvError(f"{path}: not a text file ({error.reason}); save it as UTF-8") from None
    if not isinstance(content, dict):
        raise PcvError(f"{path}: must be {SECTION}, is {_shown(content)}")
    return content
