"""Types of config values, and errors for invalid ones."""

import json
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from pcv.base.errors import PcvError, nearest

NAME = r"^[A-Za-z0-9_][A-Za-z0-9_-]*$"
MODEL = r"^([A-Za-z_]\w*(\.[A-Za-z_]\w*)*|[^:]+\.py):[A-Za-z_]\w*$"
PROGRAM = r"^[^:]+\.stan$"
"""program of Stan"""
LOG_LIK = r"^[^:]+\.(parquet|csv|nc)$"
"""file of log likelihoods that were made elsewhere, in place of a model"""
OBJECT = "python "
"""prefix of references to objects of a Python session, made by the API"""
MAX_SEED = 2**32 - 1  # JAX without float64 drops the bits above
Text = Annotated[str, Field(min_length=1)]
MAX_NAME = 100
"""characters of a name, which becomes part of file names: file systems allow 255"""
Name = Annotated[str, Field(pattern=NAME, max_length=MAX_NAME)]
Count = Annotated[int, Field(ge=1)]
NAMED = Field(min_length=1, json_schema_extra={"additionalProperties": False})
SCORES = {
    "log": "",
    "dss": "moments",
    "hyvarinen": "hyvarinen",
    "crps": "replicates",
    "scrps": "replicates",
    "energy": "replicates",
    "interval": "replicates",
    "rmse": "moments",
    "mae": "moments",
    "r2": "moments",
    "mase": "series",
    "brier": "categories",
    "accuracy": "categories",
    "balanced_accuracy": "categories",
    "rps": "categories",
}
"""names of scores → their modules in `pcv.models.scores`"""
AT_PERCENT = {"interval": 90, "pinball": 10, "coverage": 90, "width": 90}
"""scores at a probability, named with its percentage → an example of it: ``coverage_90``"""
DELTA = ("d1waic_m", "d1waic", "d2waic")
OF_DRAWS = ("waic", "tis", "psis")
SURROGATES = ("plpd", *OF_DRAWS, *DELTA, *(f"plpd_{name}" for name in DELTA))
"""names of surrogates of leave-one-out terms, see `pcv.sampling.fit.surrogates`; those `OF_DRAWS`
may have a number of draws behind them, ``waic_100``"""
SURROGATE = rf"^(auto|{'|'.join(SURROGATES)}|({'|'.join(OF_DRAWS)})_([2-9]|[1-9]\d+))$"
OF_REPLICATES = {name for name, module in SCORES.items() if module == "replicates"}
"""scores computed from stored replicates, so that adding one takes no new draws; scores at a
percentage are, too"""


def problem(what: str, *at: str) -> PydanticCustomError:
    """A validation error, at a key below the one being checked."""
    return PydanticCustomError("config", "{what}", {"what": what, "at": at})


def at_percent(name: str) -> tuple[str, float] | None:
    """The score and the probability of a name such as ``coverage_90``; None: it is none.

    Raises:
        PcvError: the percentage is missing, not between 0 and 100, or written in another way.

    >>> at_percent("coverage_90"), at_percent("pinball_2_5"), at_percent("crps")
    (('coverage', 0.9), ('pinball', 0.025), None)
    """
    base, _, number = name.partition("_")
    if base not in AT_PERCENT or name in SCORES:
        return None
    example = f"{base}_{AT_PERCENT[base]}, {base}_2_5 for 2.5%"
    if not re.fullmatch(r"\d+(_\d+)?", number):
        raise PcvError(f"score {name!r}: it needs a percentage: {example}")
    percent = float(number.replace("_", "."))
    if not 0 < percent < 100:
        raise PcvError(f"score {name!r}: {percent:g}% is not between 0% and 100%: {example}")
    if number != (written := f"{percent:g}".replace(".", "_")):
        raise PcvError(f"score {name!r}: write {base}_{written}")
    return base, percent / 100


def from_replicates(name: str) -> bool:
    """Whether a built-in score is computed from stored replicates.

    >>> from_replicates("crps"), from_replicates("coverage_90"), from_replicates("rmse")
    (True, True, False)
    """
    return name in OF_REPLICATES or (":" not in name and name.partition("_")[0] in AT_PERCENT)


def _known_score(name: str) -> str:
    if re.match(f"{MODEL}|^{OBJECT}", name):
        return name
    try:
        known = name in SCORES or at_percent(name) is not None
    except PcvError as error:
        raise problem(str(error)) from None
    if not known:
        names = [*SCORES, *(f"{base}_{number}" for base, number in AT_PERCENT.items())]
        raise problem(
            f"unknown score {name!r} (your own: file.py:function); {nearest(name, names)}"
        )
    return name


def _known_surrogate(name: str) -> str:
    if not re.match(SURROGATE, name):
        raise problem(f"unknown surrogate {name!r}; {nearest(name, ['auto', *SURROGATES])}")
    return name


Score = Annotated[str, AfterValidator(_known_score)]
Surrogate = Annotated[str, AfterValidator(_known_surrogate)]


def plain(args: dict[str, Any]) -> dict[str, Any]:
    """Refuse values that YAML and JSON cannot represent."""
    try:
        text = json.dumps(args)
    except (TypeError, ValueError) as error:
        allowed = "numbers, text, true, false, null, lists and sections"
        raise problem(f"must hold only {allowed}; put others in quotes ({error})") from None
    if number := re.search(r'"[-+]?[0-9.]+[eE][-+]?[0-9]+"', text):
        raise problem(f"YAML reads {number[0]} as text; write numbers like 1.0e-3")
    return args


def draws_of_surrogate(name: str) -> int | None:
    """The number of full-data draws that a surrogate is computed from, at most; None: those of the
    exact terms.

    >>> draws_of_surrogate("tis_100"), draws_of_surrogate("tis")
    (100, None)
    """
    number = name.rpartition("_")[2]
    return int(number) if number.isdigit() else None


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DecideConfig(Section):
    """That a difference is clear, in rules of when to stop."""

    probability: Annotated[float, Field(gt=0.5, lt=1)] = 0.99


def doubling(first: int, last: int) -> list[int]:
    """Sizes from the first to the last, each twice the one before.

    >>> doubling(200, 1000)
    [200, 400, 800, 1000]
    """
    found = [first]
    while found[-1] < last:
        found.append(min(2 * found[-1], last))
    return found
