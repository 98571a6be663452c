"""The sections of the schemes by which folds are made."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, ConfigDict, Field, model_validator

from pcv.base.section import MODEL, Section, Text, plain, problem


class LeaveOneOut(Section):
    scheme: Literal["leave_one_out"]


class KFold(Section):
    """Random folds, unless one of the other keys is given; time is that of contiguous ones."""

    scheme: Literal["k_fold"]
    k: Annotated[int, Field(ge=2)]
    stratify_by: Text | None = None
    group_by: Text | None = None
    contiguous: bool = False
    time: Text | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> "KFold":
        kinds = ("stratify_by", "group_by", "contiguous")
        given = [kind for kind in kinds if getattr(self, kind)]
        if len(given) > 1:
            raise problem(f"{' and '.join(given)} exclude each other; keep one of them")
        if self.time and not self.contiguous:
            raise problem("time: only contiguous folds have an order; add contiguous: true")
        return self


def _group_or_group_by(schema: dict[str, Any]) -> None:
    schema["properties"]["group_by"] = schema["properties"]["group"]
    schema["required"].remove("group")
    schema["oneOf"] = [{"required": ["group"]}, {"required": ["group_by"]}]


class LeaveOneGroupOut(Section):
    model_config = ConfigDict(json_schema_extra=_group_or_group_by)

    scheme: Literal["leave_one_group_out"]
    group: Annotated[Text, Field(validation_alias=AliasChoices("group", "group_by"))]


class FixedFolds(Section):
    """The user's own folds, from a column."""

    scheme: Literal["column"]
    column: Text


class LeavePOut(Section):
    scheme: Literal["leave_p_out"]
    p: Annotated[int, Field(ge=1)]
    splits: Annotated[int, Field(ge=2)] | Literal["all"] = 100


class Blocks(Section):
    scheme: Literal["block"]
    size: Annotated[int, Field(ge=1)]
    time: Text | None = None


class HBlock(Section):
    scheme: Literal["h_block"]
    h: Annotated[int, Field(ge=0)]
    skip: Annotated[int, Field(ge=0)] = 0
    time: Text | None = None


class HVBlock(Section):
    scheme: Literal["hv_block"]
    v: Annotated[int, Field(ge=0)]
    h: Annotated[int, Field(ge=0)]
    skip: Annotated[int, Field(ge=0)] = 0
    time: Text | None = None


class LeaveFutureOut(Section):
    scheme: Literal["leave_future_out"]
    min_observations: Annotated[int, Field(ge=1)]
    forecast_horizon: Annotated[int, Field(ge=1)] = 1
    step: Annotated[int, Field(ge=1)] = 1
    window: Annotated[int, Field(ge=1)] | None = None
    time: Text | None = None


class Coordinates(Section):
    """Columns of places: in a plane, or on the earth in degrees."""

    x: Text | None = None
    y: Text | None = None
    longitude: Text | None = None
    latitude: Text | None = None

    @model_validator(mode="after")
    def _one_pair(self) -> "Coordinates":
        given = [name for name, column in self if column]
        if given not in (["x", "y"], ["longitude", "latitude"]):
            raise problem("name the columns of x and y, or of longitude and latitude")
        return self


class SpatialBlocks(Section):
    scheme: Literal["spatial_block"]
    coordinates: Coordinates
    size: Annotated[float, Field(gt=0)]
    buffer: Annotated[float, Field(ge=0)] = 0.0


class LeaveOneLocationOut(Section):
    scheme: Literal["leave_one_location_out"]
    coordinates: Coordinates
    buffer: Annotated[float, Field(ge=0)] = 0.0


class Splitter(Section):
    """Any class with scikit-learn's `split(X, y, groups)`."""

    scheme: Literal["splitter"]
    splitter: Annotated[str, Field(pattern=MODEL)]
    args: Annotated[dict[str, Any], AfterValidator(plain)] = {}
    y: Text | None = None
    groups: Text | None = None
    time: Text | None = None


class FoldsOfFile(Section):
    """Folds that were laid out before, in a store like `folds.zarr`."""

    scheme: Literal["file"]
    file: Text
    time: Text | None = None


SCHEMES: dict[str, type[Section]] = {
    "leave_one_out": LeaveOneOut,
    "leave_p_out": LeavePOut,
    "k_fold": KFold,
    "leave_one_group_out": LeaveOneGroupOut,
    "block": Blocks,
    "h_block": HBlock,
    "hv_block": HVBlock,
    "leave_future_out": LeaveFutureOut,
    "spatial_block": SpatialBlocks,
    "leave_one_location_out": LeaveOneLocationOut,
    "splitter": Splitter,
    "column": FixedFolds,
    "file": FoldsOfFile,
}
FoldScheme = Annotated[
    LeaveOneOut
    | LeavePOut
    | KFold
    | LeaveOneGroupOut
    | Blocks
    | HBlock
    | HVBlock
    | LeaveFutureOut
    | SpatialBlocks
    | LeaveOneLocationOut
    | Splitter
    | FixedFolds
    | FoldsOfFile,
    Field(discriminator="scheme"),
]
