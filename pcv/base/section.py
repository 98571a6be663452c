"""What values of a config may be, and how a wrong one is named."""

import difflib
import json
import re
from collections.abc import Collection
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

NAME = r"^[A-Za-z0-9_][A-Za-z0-9_-]*$"
MODEL = r"^([A-Za-z_]\w*(\.[A-Za-z_]\w*)*|[^:]+\.py):[A-Za-z_]\w*$"
OBJECT = "python "
"""how references to objects of a Python session begin, which the API makes"""
MAX_SEED = 2**32 - 1  # JAX without float64 drops the bits above
Text = Annotated[str, Field(min_length=1)]
MAX_NAME = 100
"""letters of a name, which is part of names of files: file systems allow 255"""
Name = Annotated[str, Field(pattern=NAME, max_length=MAX_NAME)]
Count = Annotated[int, Field(ge=1)]
NAMED = Field(min_length=1, json_schema_extra={"additionalProperties": False})
SCORES = {
    "log": "",
    "dss": "moments",
    "hyvarinen": "hyvarinen",
    "crps": "replicates",
    "energy": "replicates",
    "interval": "replicates",
    "rmse": "moments",
    "mae": "moments",
    "brier": "binary",
    "accuracy": "binary",
}
"""scores that a config may name, and the modules of `pcv.models.scores` that have them"""
OF_REPLICATES = {name for name, module in SCORES.items() if module == "replicates"}
"""scores that are computed from stored replicates, so that one more takes no new draws"""


def problem(what: str, *at: str) -> PydanticCustomError:
    """What is wrong, and at which key below the one being checked."""
    return PydanticCustomError("config", "{what}", {"what": what, "at": at})


def nearest(name: str, known: Collection[str]) -> str:
    """What was meant, or what there is."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


def _known_score(name: str) -> str:
    if name not in SCORES and not re.match(f"{MODEL}|^{OBJECT}", name):
        raise problem(
            f"unknown score {name!r} (your own: file.py:function); {nearest(name, SCORES)}"
        )
    return name


Score = Annotated[str, AfterValidator(_known_score)]


def plain(args: dict[str, Any]) -> dict[str, Any]:
    """Refuse what YAML and JSON have no words for."""
    try:
        text = json.dumps(args)
    except (TypeError, ValueError) as error:
        allowed = "numbers, text, true, false, null, lists and sections"
        raise problem(f"must hold only {allowed}; put others in quotes ({error})") from None
    if number := re.search(r'"[-+]?[0-9.]+[eE][-+]?[0-9]+"', text):
        raise problem(f"YAML takes {number[0]} for text; write numbers like 1.0e-3")
    return args


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
