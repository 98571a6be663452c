"""What the page of nested R-hat runs: the section `nested_rhat` of its config."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pcv.base.section import MAX_SEED, Count, Section, problem
from pcv.pipeline.config import reading

VERSION = 1
"""raised when runs of the same settings change"""
TargetName = Literal[
    "rosenbrock", "schools", "german_credit", "pharmacokinetics", "bimodal", "item_response"
]


class Runs(Section):
    """Of one target."""

    chains: Annotated[int, Field(ge=4)] = 2048
    superchains: Annotated[list[Count], Field(min_length=1)]
    """the first is that of figures 5 and 6"""
    repeats: Count
    lengths: Annotated[list[Count], Field(min_length=1)]
    """warmups in draws, at whose end chains are looked at"""
    reference: Annotated[int, Field(ge=1000)]
    """draws of the fit whose moments are the truth where these are not known"""

    @model_validator(mode="after")
    def _in_order(self) -> "Runs":
        if self.lengths != sorted(set(self.lengths)):
            raise problem("must increase", "lengths")
        if len(set(self.superchains)) < len(self.superchains):
            raise problem("names a number twice", "superchains")
        return self

    @model_validator(mode="after")
    def _of_equal_size(self) -> "Runs":
        for number in self.superchains:
            if number < 2 or self.chains % number or number > self.chains // 2:
                raise problem(
                    f"{number} superchains of {self.chains} chains: must be at least two, of equal "
                    "size, with at least two chains each",
                    "superchains",
                )
        return self


class Illustrated(Section):
    """Of the figures about single normal distributions, and figure 1."""

    superchains: Annotated[int, Field(ge=4)]
    """whose variance figures 3 and 8 estimate"""
    chains: Annotated[int, Field(ge=2)]
    """per superchain in figure 3"""
    repeats: Annotated[int, Field(ge=2)]
    """runs over which figure 4 takes variances"""
    grid: Annotated[int, Field(ge=2)]
    """biases, and variances, of starts in figure 8"""


class Settings(Section):
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 1
    precision: Literal["float64", "float32", "auto"] = "auto"
    targets: Annotated[dict[TargetName, Runs], Field(min_length=1)]
    illustrated: Illustrated


def part(settings: Settings, name: str) -> str:
    """What a run is made of, as text: of a target, or of the illustrations."""
    own = settings.targets.get(name, settings.illustrated)  # type: ignore[call-overload]
    made_of = settings.model_dump(include={"seed", "precision"}) | own.model_dump()
    return json.dumps({"version": VERSION} | made_of)


class File(Section):
    nested_rhat: Settings


def load(path: Path) -> Settings:
    """Read the settings.

    Raises:
        PcvError: the file is not valid; one line for each problem.
    """
    return parse(reading.read(path), str(path))


def parse(content: dict[str, Any], source: str) -> Settings:
    """Settings that are already read."""
    return reading.validated(File, content, source).nested_rhat
