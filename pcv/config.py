"""The config of a run, as types: what a YAML file may say, checked before anything is computed.

config/README.md documents every key; ``python -m pcv.config`` writes the JSON schema.

>>> from pathlib import Path
>>> config = load(Path("config/config.yaml"))
>>> config.experiments["rats"].cv.draws
200
>>> stage_config(config, "rats", "sample", "slopes")
{'scores': ['log'], 'cv': {'draws': 200, 'until': None, 'store': 'draws'}}
"""

import difflib
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from pcv.errors import PcvError

SCHEMA = Path(__file__).parent.parent / "workflow/schemas/config.schema.json"
NAME = r"^[A-Za-z0-9_][A-Za-z0-9_-]*$"
MODEL = r"^([A-Za-z_]\w*(\.[A-Za-z_]\w*)*|[^:]+\.py):[A-Za-z_]\w*$"
OBJECT = "python "
"""how references to objects of a Python session begin, which the API makes"""
MAX_SEED = 2**32 - 1  # JAX without float64 drops the bits above

Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=NAME)]
SCORES = (
    *("log", "dss", "hyvarinen", "crps", "energy", "interval", "rmse", "mae", "brier"),
    "accuracy",
)
"""scores that a config may name; pcv.scores has all but the log score"""
Count = Annotated[int, Field(ge=1)]
NAMED = Field(min_length=1, json_schema_extra={"additionalProperties": False})


def _problem(what: str, *at: str) -> PydanticCustomError:
    """What is wrong, and at which key below the one being checked."""
    return PydanticCustomError("config", "{what}", {"what": what, "at": at})


def _known_score(name: str) -> str:
    if name not in SCORES and not re.match(f"{MODEL}|^{OBJECT}", name):
        raise _problem(
            f"unknown score {name!r} (your own: file.py:function); {_nearest(name, SCORES)}"
        )
    return name


Score = Annotated[str, AfterValidator(_known_score)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Dataset = Literal["grouped_gaussian", "radon", "air_passengers"]
"""registered data sets, see `pcv.registry`"""


class DataConfig(Section):
    file: Text | None = None
    dataset: Dataset | None = None
    outcome: Text
    order: list[Text] = []
    units: list[Text] = []  # none: each row is a unit
    columns: list[Text] | None = None  # None: all
    labels: dict[Text, Text] = {}

    @model_validator(mode="after")
    def _one_source(self) -> "DataConfig":
        if (self.file is None) == (self.dataset is None):
            raise _problem("name either a file or a registered dataset")
        return self

    @model_validator(mode="after")
    def _labels_of_keys(self) -> "DataConfig":
        for name in self.labels:
            if name not in (*self.order, *self.units):
                raise _problem(f"labels: '{name}' is in neither order nor units, which name units")
        return self


def _plain(args: dict[str, Any]) -> dict[str, Any]:
    try:
        text = json.dumps(args)
    except (TypeError, ValueError) as error:
        allowed = "numbers, text, true, false, null, lists and sections"
        raise _problem(f"must hold only {allowed}; put others in quotes ({error})") from None
    if number := re.search(r'"[-+]?[0-9.]+[eE][-+]?[0-9]+"', text):
        raise _problem(f"YAML takes {number[0]} for text; write numbers like 1.0e-3")
    return args


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
            raise _problem(f"{' and '.join(given)} exclude each other; keep one of them")
        if self.time and not self.contiguous:
            raise _problem("time: only contiguous folds have an order; add contiguous: true")
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
            raise _problem("name the columns of x and y, or of longitude and latitude")
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
    args: Annotated[dict[str, Any], AfterValidator(_plain)] = {}
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


class ModelConfig(Section):
    model: Annotated[str, Field(pattern=f"{MODEL}|^{OBJECT}")]
    args: Annotated[dict[str, Any], AfterValidator(_plain)] = {}


class FitConfig(Section):
    chains: Annotated[int, Field(ge=4)] = 4
    warmup: Annotated[int, Field(ge=100)] = 1000
    draws: Annotated[int, Field(ge=100)] = 1000
    target_accept: Annotated[float, Field(gt=0.5, lt=1)] = 0.8
    allow_bad_fit: bool = False


MANY_CHAINS = 32
"""chains of a fold from which `superchains: auto` lets several start at one point"""


class DecideConfig(Section):
    probability: Annotated[float, Field(gt=0.5, lt=1)] = 0.99


class UntilConfig(Section):
    fold_mcse: Annotated[float, Field(gt=0)] | None = None
    fold_mcse_over_se: Annotated[float, Field(gt=0)] | None = None
    mcse_over_se: Annotated[float, Field(gt=0)] | None = None
    decide: DecideConfig | None = None
    rhat: Annotated[float, Field(gt=1)] = 1.05
    min_draws: Count = 200
    max_draws: Count

    @model_validator(mode="after")
    def _one_tolerance(self) -> "UntilConfig":
        of_folds = [self.fold_mcse, self.fold_mcse_over_se]
        rules = sum(x is not None for x in of_folds) + self.of_comparison
        if rules != 1:
            raise _problem(
                "name one rule: fold_mcse, fold_mcse_over_se, or (mcse_over_se and/or decide)"
            )
        if self.max_draws < self.min_draws:
            raise _problem(f"must be at least min_draws, {self.min_draws}", "max_draws")
        return self

    @property
    def of_comparison(self) -> bool:
        """Does the comparison of all models decide, rather than each fold for itself?"""
        return self.mcse_over_se is not None or self.decide is not None


class CvConfig(Section):
    chains: Annotated[int, Field(ge=2)] = 8
    warmup: Count = 50
    draws: Count = 200
    until: UntilConfig | None = None  # None: all folds make `draws`
    batch_size: Count = 50
    store: Literal["draws", "sums"] = "draws"
    fold_batches: Count | Literal["auto"] = 1
    memory_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    superchains: Annotated[int, Field(ge=2)] | Literal["auto"] | None = "auto"
    adapt: Literal["auto", "always", "never"] = "auto"

    @model_validator(mode="after")
    def _whole_batches(self) -> "CvConfig":
        fewest = 1 if self.num_superchains else 2
        batches = max(fewest, -(-self.draws // self.batch_size))
        if self.draws != batches * self.batch_size:
            raise _problem(
                f"must be a multiple of batch_size and at least two batches, is {self.draws} with"
                f" batch_size {self.batch_size}; take {batches * self.batch_size}",
                "draws",
            )
        return self

    @model_validator(mode="after")
    def _equal_superchains(self) -> "CvConfig":
        if isinstance(self.superchains, int) and self.chains % self.superchains:
            raise _problem(
                f"{self.superchains} superchains of {self.chains} chains: they must be of one size",
                "superchains",
            )
        return self

    @model_validator(mode="after")
    def _until_in_batches(self) -> "CvConfig":
        if self.until is None:
            return self
        for name in ("min_draws", "max_draws"):
            number = getattr(self.until, name)
            if number % self.batch_size or number < 2 * self.batch_size:
                raise _problem(
                    f"must be a multiple of batch_size, {self.batch_size}, and at least two "
                    f"batches, is {number}",
                    "until",
                    name,
                )
        if self.until.fold_mcse_over_se is not None and self.fold_batches != 1:
            raise _problem(
                "needs all folds in one job (fold_batches: 1); take fold_mcse or mcse_over_se",
                "until",
                "fold_mcse_over_se",
            )
        return self

    @property
    def most_draws(self) -> int:
        """Draws per chain, of folds that do not end earlier."""
        return self.until.max_draws if self.until else self.draws

    @property
    def lengths(self) -> list[int]:
        """Draws per chain at which folds may end for themselves."""
        from pcv.stopping import looks

        if self.until is None:
            return [self.draws]
        return looks(self.until.min_draws, self.until.max_draws, self.batch_size)

    @property
    def rounds(self) -> list[int]:
        """Draws per chain after each round of sampling; the comparison decides who goes on."""
        from pcv.stopping import doubling

        if self.until is None or not self.until.of_comparison:
            return [self.most_draws]
        return doubling(self.until.min_draws, self.until.max_draws)

    @property
    def num_superchains(self) -> int:
        """Sets of chains that start at one point; 0: every chain starts at a point of its own."""
        if self.superchains != "auto":
            return self.superchains or 0
        most = max(4, self.chains // 16) if self.chains >= MANY_CHAINS else 0
        return max((k for k in range(3, most + 1) if self.chains % k == 0), default=0)


class CompareConfig(Section):
    reference: str | None = None  # None: the best model


class ReportConfig(Section):
    title: str | None = None  # None: the experiment's name


class Experiment(Section):
    data: DataConfig
    folds: FoldScheme
    models: Annotated[dict[Name, ModelConfig], NAMED]
    predictive: Literal["auto", "marginal", "plain"] = "auto"
    scores: Annotated[list[Score], Field(min_length=1)] = ["log"]
    fit: FitConfig = FitConfig()
    cv: CvConfig = CvConfig()
    compare: CompareConfig = CompareConfig()
    report: ReportConfig = ReportConfig()

    @model_validator(mode="after")
    def _known_reference(self) -> "Experiment":
        name = self.compare.reference
        if name is not None and name not in self.models:
            near = _nearest(name, self.models)
            raise _problem(f"no model {name!r}; {near}", "compare", "reference")
        return self

    @model_validator(mode="after")
    def _until_can_be_met(self) -> "Experiment":
        until = self.cv.until
        if until and until.decide and not until.mcse_over_se and len(self.models) == 1:
            raise _problem("needs another model to decide against", "cv", "until", "decide")
        return self

    @model_validator(mode="after")
    def _batches_enough(self) -> "Experiment":
        across = {"crps", "energy", "interval"} & set(self.scores)
        if across and self.cv.most_draws < 2 * self.cv.batch_size:
            raise _problem(
                f"{min(across)} has no Monte Carlo error with one batch of draws; take two, "
                f"draws: {2 * self.cv.batch_size}",
                "scores",
            )
        return self


class Config(Section):
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]
    precision: Literal["float64", "float32", "auto"] = "float64"
    experiments: Annotated[dict[Name, Experiment], NAMED]


def _nearest(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


def _shown(value: object) -> str:
    if value is None or value in ({}, []):
        return "empty"
    if isinstance(value, dict | list):
        return "a list" if isinstance(value, list) else "a section"
    return repr(value) if isinstance(value, str) else str(value).lower()


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
        case ("experiments", _, "cv", "until"):
            return UntilConfig
        case ("experiments", _, "cv", "until", "decide"):
            return DecideConfig
        case ("experiments", _, str(key)):
            return Experiment.model_fields[key].annotation  # type: ignore[return-value]
    return Config


SECTION = "a section (lines of key: value)"
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
    "literal_error": "{expected}",
    "string_pattern_mismatch": "package.module:function or file.py:function",
}


def _line(error: ErrorDetails) -> str:
    """An error of pydantic's in plain words: key path, what is wrong, what to do."""
    path, value, context = error["loc"], error["input"], error.get("ctx", {})
    if path[2:3] == ("folds",):
        path = path[:3] + path[4:]  # without the scheme's name, which pydantic puts in
    match error["type"]:
        case "extra_forbidden" | "invalid_key":
            known = _section(error["loc"][:-1]).model_fields
            path = (*path[:-1], str(path[-1]))
            what = f"unknown key; {_nearest(str(path[-1]), known)}"
        case "missing":
            what = "missing; add it (config/README.md says what it is)"
        case "too_short" | "string_too_short":
            what = "is empty; fill it in"
        case "union_tag_not_found":
            what = f"missing; add one of {', '.join(SCHEMES)}"
            path += ("scheme",)
        case "union_tag_invalid":
            what = f"unknown scheme {value['scheme']!r}; {_nearest(str(value['scheme']), SCHEMES)}"
            path += ("scheme",)
        case "string_pattern_mismatch" if context["pattern"] == NAME:
            allowed = "letters a to z, digits, '_' and '-', and no '-' in front"
            what = f"names have only {allowed}; rename it"
        case "config":
            what = context["what"]
            path += context["at"]
        case kind if kind in EXPECTED:
            instead = f" or {context['instead']}" if "instead" in context else ""
            what = f"must be {EXPECTED[kind].format(**context)}{instead}, is {_shown(value)}"
            if kind == "string_type" and isinstance(value, bool | int | float):
                what += "; put it in quotes"
            elif EXPECTED[kind] == SECTION and value is None:
                what += "; write {} for one without keys"
            elif kind in ("int_type", "float_type") and isinstance(value, str):
                what += "; write numbers without quotes, exponents as in 1.0e-3"
        case _:
            what = error["msg"]
    if path[-1:] == ("[key]",):
        path = (*path[:-2], _shown(value))
    keys = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return f"{keys[1:]}: {what}"


def _one_each(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Errors of a number that may also be a word, one in place of one for either."""
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
    """Refuses a key given twice in one section, of which YAML would silently take the last."""

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
    """Check a config that is read already, such as Snakemake's.

    Args:
        mapping: the config as nested dicts and lists.
        source: what messages call it, such as its file's name.

    Raises:
        PcvError: one line per problem: source, key path, what is wrong, what to do.

    >>> parse({"seed": -1, "experimnts": {}})
    Traceback (most recent call last):
    pcv.errors.PcvError: config: seed: must be at least 0, is -1
    config: experiments: missing; add it (config/README.md says what it is)
    config: experimnts: unknown key; did you mean 'experiments'?
    """
    try:
        return Config.model_validate(dict(mapping))
    except ValidationError as error:
        lines = [f"{source}: {_line(detail)}" for detail in _one_each(error.errors())]
        raise PcvError("\n".join(lines)) from None


def load(path: Path) -> Config:
    """Read and check a YAML config.

    Raises:
        PcvError: no such file, no YAML (the line is given), a key given twice, nothing in it, or
            the problems of `parse`.
    """
    try:
        content = yaml.load(path.read_bytes(), _Loader)
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
    except yaml.reader.ReaderError as error:
        raise PcvError(f"{path}: not a text file ({error.reason}); save it as UTF-8") from None
    if not isinstance(content, dict):
        raise PcvError(
            f"{path}: must be {SECTION}, is {_shown(content)}; config/README.md has an example"
        )
    return parse(content, str(path))


STAGES: dict[str, tuple[set[str], dict[str, Any]]] = {
    "data": (set(), {"data": True}),
    "fit": ({"seed", "precision"}, {"fit": {"chains", "warmup", "draws", "target_accept"}}),
    "folds": ({"seed"}, {"folds": True}),
    "cut": (
        set(),
        {"predictive": True, "scores": True}
        | {"cv": {"chains", "batch_size", "fold_batches", "memory_share"}},
    ),
    "warmup": (
        {"seed", "precision"},
        {"predictive": True} | {"cv": {"chains", "warmup", "batch_size", "superchains", "adapt"}},
    ),
    "sample": (set(), {"scores": True, "cv": {"draws", "until", "store"}}),
    "plan": (set(), {"cv": {"until"}, "compare": True}),
    "diagnose": ({"seed"}, {}),
    "compare": (set(), {"compare": True}),
    "report": (set(), {"report": True}),
}
"""for each stage, the keys of the config and of the experiment that its result depends on"""


def stage_config(
    config: Config, experiment: str, stage: str, model: str | None = None
) -> dict[str, Any]:
    """The part of the config that a stage's result depends on, beyond that of the stages before.

    Args:
        config: the whole config.
        experiment: name of the experiment.
        stage: name of the stage, one of `STAGES`.
        model: name of the model; `fit` needs it, the other stages' parts are common to all models.

    Returns:
        Nested dicts of plain values, to be hashed or given to Snakemake as `params`.

    Raises:
        PcvError: no such experiment or model; the nearest name is suggested.
    """
    if experiment not in config.experiments:
        raise PcvError(f"no experiment {experiment!r}; {_nearest(experiment, config.experiments)}")
    chosen = config.experiments[experiment]
    if (stage == "fit" or model is not None) and model not in chosen.models:
        near = _nearest(str(model), chosen.models)
        raise PcvError(f"experiment {experiment}: no model {model!r}; {near}")
    whole, part = STAGES[stage]
    result = config.model_dump(include=whole) | chosen.model_dump(include=part)
    if stage == "sample" and chosen.cv.until is not None:
        del result["cv"]["draws"]
    if stage == "fit":
        result["model"] = chosen.models[str(model)].model_dump()
    return result


def json_schema() -> dict[str, Any]:
    """The JSON schema of a config file, for editors and validators."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, **Config.model_json_schema()}


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(json_schema(), indent=2) + "\n")
