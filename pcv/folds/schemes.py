"""The schemes of a config: each has its keys, its title and the function it calls, imported only
when folds are made, so that configs are checked without NumPy."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import AfterValidator, AliasChoices, ConfigDict, Field, model_validator

from pcv.base.errors import key_path
from pcv.base.section import MODEL, Text, plain, problem
from pcv.folds.sections.coordinates import Coordinates
from pcv.folds.sections.cumulative import Cumulative
from pcv.folds.sections.scheme import FromFullData, Scheme, Table, shown
from pcv.folds.sections.subsampling import Subsampling

if TYPE_CHECKING:
    import numpy as np

    from pcv.folds.base import Folds
    from pcv.folds.space import Places


class LeaveOneOut(FromFullData):
    words = "leave-one-out"

    scheme: Literal["leave_one_out"]

    def lay_out(self, table: Table) -> "Folds":
        from pcv.folds.exchangeable import leave_one_out

        return leave_one_out(table.units)


MANY_FOLDS = 10_000
"""folds of `leave_p_out` beyond which to warn that they take long"""


class LeavePOut(Scheme):
    scheme: Literal["leave_p_out"]
    p: Annotated[int, Field(ge=1)]
    splits: Annotated[int, Field(ge=2)] | Literal["all"] = 100
    up_to: bool = False

    @property
    def title(self) -> str:
        return f"leave-up-to-{self.p}-out" if self.up_to else f"leave-{self.p}-out"

    def lay_out(self, table: Table) -> "Folds":
        from pcv.folds.exchangeable import leave_p_out

        return leave_p_out(table.units, self.p, self.splits, table.seed, self.up_to)

    def doubts(self, folds: "Folds", num_units: int) -> Iterator[str]:
        if len(folds.id) > MANY_FOLDS:
            yield (
                f"leave-p-out: {len(folds.id)} folds, each with chains of its own, take long;"
                f" sample some of them with {key_path(('folds', 'splits'))}"
            )


class KFold(Scheme):
    """Random folds unless another key is given; `time` is for contiguous ones."""

    scheme: Literal["k_fold"]
    k: Annotated[int, Field(ge=2)]
    stratify_by: Text | None = None
    group_by: Text | None = None
    contiguous: bool = False
    time: Text | None = None
    repeats: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _one_kind(self) -> "KFold":
        kinds = ("stratify_by", "group_by", "contiguous")
        given = [kind for kind in kinds if getattr(self, kind)]
        if len(given) > 1:
            raise problem(f"{' and '.join(given)} exclude each other; keep one of them")
        if self.time and not self.contiguous:
            raise problem("time: only contiguous folds have an order; add contiguous: true")
        if self.repeats > 1 and self.contiguous:
            raise problem("repeats: contiguous folds are the same in each; keep one of them")
        return self

    @property
    def title(self) -> str:
        times = f", {self.repeats} times" * (self.repeats > 1)
        if self.group_by:
            return f"{self.k}-fold over groups of {self.group_by}{times}"
        if self.stratify_by:
            return f"{self.k}-fold stratified by {self.stratify_by}{times}"
        return f"{self.k}-fold {'contiguous' if self.contiguous else 'at random'}{times}"

    def lay_out(self, table: Table) -> "Folds":
        from pcv.folds.exchangeable import kfold

        by = {key: getattr(self, key) for key in ("group_by", "stratify_by")}
        columns = {key: table.column(key, name) for key, name in by.items() if name}
        given = {"contiguous": self.contiguous, "repeats": self.repeats, "seed": table.seed}
        return kfold(table.units, self.k, **given, **columns)  # type: ignore[arg-type]


def _group_or_group_by(schema: dict[str, Any]) -> None:
    schema["properties"]["group_by"] = schema["properties"]["group"]
    schema["required"].remove("group")
    schema["oneOf"] = [{"required": ["group"]}, {"required": ["group_by"]}]


class LeaveOneGroupOut(FromFullData):
    model_config = ConfigDict(json_schema_extra=_group_or_group_by)
    scheme: Literal["leave_one_group_out"]
    group: Annotated[Text, Field(validation_alias=AliasChoices("group", "group_by"))]

    @property
    def title(self) -> str:
        return f"leave-one-group-out over {shown(self.group)}"

    def lay_out(self, table: Table) -> "Folds":
        from pcv.folds.exchangeable import leave_one_group_out

        return leave_one_group_out(table.column("group", self.group), shown(self.group))


class Blocks(Scheme):
    words = "blocks of {size}"
    function = "time.block"

    scheme: Literal["block"]
    size: Annotated[int, Field(ge=1)]
    time: Text | None = None


class HBlock(Scheme):
    words = "h-block, h = {h}"
    function = "time.h_block"

    scheme: Literal["h_block"]
    h: Annotated[int, Field(ge=0)]
    skip: Annotated[int, Field(ge=0)] = 0
    time: Text | None = None


class HVBlock(Scheme):
    words = "hv-block, v = {v}, h = {h}"
    function = "time.hv_block"

    scheme: Literal["hv_block"]
    v: Annotated[int, Field(ge=0)]
    h: Annotated[int, Field(ge=0)]
    skip: Annotated[int, Field(ge=0)] = 0
    time: Text | None = None


def _or_horizon(schema: dict[str, Any]) -> None:
    schema["properties"]["horizon"] = schema["properties"]["forecast_horizon"]


class LeaveFutureOut(Scheme):
    model_config = ConfigDict(json_schema_extra=_or_horizon)
    left_out = "not used"  # after the test set, or before the window

    scheme: Literal["leave_future_out"]

    @model_validator(mode="before")
    @classmethod
    def _one_horizon(cls, given: Any) -> Any:
        if isinstance(given, dict) and {"horizon", "forecast_horizon"} <= given.keys():
            raise problem("is short for forecast_horizon; give one of them", "horizon")
        return given

    min_observations: Annotated[int, Field(ge=1)]
    forecast_horizon: Annotated[
        int, Field(ge=1, validation_alias=AliasChoices("forecast_horizon", "horizon"))
    ] = 1
    step: Annotated[int, Field(ge=1)] = 1
    window: Annotated[int, Field(ge=1)] | None = None
    time: Text | None = None
    by: Text | None = None

    @property
    def title(self) -> str:
        window = f"window of {self.window}" if self.window else "expanding window"
        series = f" of each {self.by}" if self.by else ""
        return f"leave-future-out{series}, {self.forecast_horizon} ahead, {window}"

    def lay_out(self, table: Table) -> "Folds":
        from pcv.folds.time import leave_future_out

        keys = self.model_dump(exclude={"scheme", "time", "by"})
        return leave_future_out(table.units, **keys, by=self.series(table))

    def series(self, table: Table) -> "np.ndarray | None":
        return table.optional("by", self.by)


class SpatialBlocks(Scheme):
    scheme: Literal["spatial_block"]
    coordinates: Coordinates
    size: Annotated[float, Field(gt=0)]
    buffer: Annotated[float, Field(ge=0)] = 0.0

    @property
    def title(self) -> str:
        where = self.coordinates
        return f"spatial blocks of {where.distance(self.size)}{where.buffer(self.buffer)}"

    def lay_out(self, table: Table) -> "Folds":
        from pcv.folds.space import spatial_block

        x, y, degrees = self.coordinates.of(table)
        return spatial_block(x, y, self.size, self.buffer, degrees)

    def doubts(self, folds: "Folds", num_units: int) -> Iterator[str]:
        return self.coordinates.doubts(size=self.size, buffer=self.buffer)

    def places(self, table: Table) -> "Places":
        from pcv.folds.space import places_of

        return places_of(*self.coordinates.of(table))


class LeaveOneLocationOut(Scheme):
    scheme: Literal["leave_one_location_out"]
    coordinates: Coordinates
    buffer: Annotated[float, Field(ge=0)] = 0.0

    @property
    def title(self) -> str:
        return f"leave-one-location-out{self.coordinates.buffer(self.buffer)}"

    def lay_out(self, table: Table) -> "Folds":
        from pcv.folds.space import leave_one_location_out

        x, y, degrees = self.coordinates.of(table)
        return leave_one_location_out(x, y, self.buffer, degrees)

    def doubts(self, folds: "Folds", num_units: int) -> Iterator[str]:
        return self.coordinates.doubts(buffer=self.buffer)

    def places(self, table: Table) -> "Places":
        from pcv.folds.space import places_of

        return places_of(*self.coordinates.of(table))


class Splitter(Scheme):
    """Any class with scikit-learn's `split(X, y, groups)`."""

    scheme: Literal["splitter"]
    splitter: Annotated[str, Field(pattern=MODEL)]
    args: Annotated[dict[str, Any], AfterValidator(plain)] = {}
    y: Text | None = None
    groups: Text | None = None
    time: Text | None = None

    @property
    def title(self) -> str:
        return f"folds of {self.splitter.rpartition(':')[2]}"

    def lay_out(self, table: Table) -> "Folds":
        from pcv.base import reference
        from pcv.folds.splitters import from_splitter

        y, groups = table.optional("y", self.y), table.optional("groups", self.groups)
        splitter = reference.call(self.splitter, self.args)
        with reference.naming(self.splitter, "split"):
            return from_splitter(splitter, table.units, y, groups)


class FixedFolds(Scheme):
    """Predefined folds, from a column."""

    scheme: Literal["column"]
    column: Text
    test: Text | bool | int | float | None = None  # None: every value is a fold

    @property
    def title(self) -> str:
        only = "" if self.test is None else f", tested where it is {self.test}"
        return f"folds of column {self.column}{only}"

    def lay_out(self, table: Table) -> "Folds":
        from pcv.folds.exchangeable import from_column

        return from_column(table.column("column", self.column), self.column, self.test)

    def doubts(self, folds: "Folds", num_units: int) -> Iterator[str]:
        if num_units >= 20 and len(folds.id) > 0.9 * num_units:
            yield (
                f"column {self.column!r} makes {len(folds.id)} folds of {num_units} units:"
                " does it hold folds, or measurements?"
            )


class FoldsOfFile(Scheme):
    """Saved folds, from a store like `folds.zarr`."""

    words = "folds of {file}"

    scheme: Literal["file"]
    file: Text
    time: Text | None = None

    def lay_out(self, table: Table) -> "Folds":
        from pcv.folds.base import from_file
        from pcv.folds.checks import checked

        return checked(from_file(Path(self.file)), table.units)


Known = (
    LeaveOneOut
    | LeavePOut
    | KFold
    | LeaveOneGroupOut
    | Subsampling
    | Cumulative
    | Blocks
    | HBlock
    | HVBlock
    | LeaveFutureOut
    | SpatialBlocks
    | LeaveOneLocationOut
    | Splitter
    | FixedFolds
    | FoldsOfFile
)
FoldScheme = Annotated[Known, Field(discriminator="scheme")]
SCHEMES: dict[str, type[Scheme]] = {
    get_args(kind.model_fields["scheme"].annotation)[0]: kind for kind in get_args(Known)
}


def make(scheme: Scheme, table: Table) -> "Folds":
    """The folds of a config.

    Args:
        scheme: the folds section of an experiment.
        table: the data.

    Raises:
        PcvError: an unknown column, one that varies within a unit, more folds than units or
            groups, fewer than two groups, or folds that `pcv.folds.checks.check` refuses.

    Warns:
        UserWarning: values of a stratified column that occur in fewer units than there are folds;
            sizes on the earth that may be meant in degrees; a column that makes nearly every unit
            a fold; very many folds.

    >>> import xarray as xr
    >>> data = xr.Dataset(coords={"unit": ["A", "B", "C"]})
    >>> make(LeaveOneOut(scheme="leave_one_out"), Table(data))
    3 folds of 3 units: test 1, training 2, no gap
    """
    from pcv.folds.checks import check_order

    folds = scheme.lay_out(table)
    if time := getattr(scheme, "time", None):
        by = table.optional("by", getattr(scheme, "by", None))
        check_order(table.column("time", time), table.units, f"column {time!r}", folds, by)
    for said in scheme.doubts(folds, len(table.units)):
        warnings.warn(said, stacklevel=2)
    return folds


def headline(scheme: Scheme, described: str) -> str:
    """The scheme's title and the folds' description; the latter alone for `FoldsOfFile`, by which
    sessions pass their own folds."""
    return described if isinstance(scheme, FoldsOfFile) else f"{scheme.title}: {described}"
