"""The sections of a config: data, models, report, and the settings of `pcv.core.settings`."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from pcv.base import section
from pcv.base.errors import nearest
from pcv.core.settings import Settings
from pcv.folds.sections.cumulative import Cumulative
from pcv.folds.sections.subsampling import Subsampling

MAX_TITLE = 200
"""characters of a report's title, which is read from the page's head"""
Dataset = Literal[
    "grouped_gaussian",
    "polynomial",
    "kinetics",
    "radon",
    "wells",
    "pima",
    "german_credit",
    "air_passengers",
]
"""registered data sets, see `pcv.pipeline.data.registry`"""


class DataConfig(section.Section):
    file: section.Text | None = None
    dataset: Dataset | None = None
    outcome: section.Text
    order: list[section.Text] = []
    units: list[section.Text] = []  # none: each row is a unit
    columns: list[section.Text] | None = None  # None: all
    labels: dict[section.Text, section.Text] = {}
    weights: section.Text | None = None  # column of frequencies; None: each row counts once

    @model_validator(mode="after")
    def _one_source(self) -> "DataConfig":
        if (self.file is None) == (self.dataset is None):
            raise section.problem("name either a file or a registered dataset")
        return self

    @model_validator(mode="after")
    def _labels_of_keys(self) -> "DataConfig":
        for name in self.labels:
            if name not in (*self.order, *self.units):
                raise section.problem(
                    f"labels: '{name}' is in neither order nor units, which name units"
                )
        return self


class ModelConfig(section.Section):
    model: Annotated[
        str,
        Field(pattern=f"{section.MODEL}|{section.PROGRAM}|{section.LOG_LIK}|^{section.OBJECT}"),
    ]  # or a file of log likelihoods
    data: (
        Annotated[dict[str, Any], AfterValidator(section.plain)]
        | Annotated[str, Field(pattern=section.MODEL)]
    ) = {}
    args: Annotated[dict[str, Any], AfterValidator(section.plain)] = {}

    @property
    def log_lik(self) -> list[str]:
        """Files of log likelihoods that were made elsewhere; none: it is a model."""
        if not re.match(section.LOG_LIK, self.model):
            return []
        return [self.model, *map(str, self.args.values())]

    @model_validator(mode="after")
    def _args_of_files(self) -> "ModelConfig":
        files = all(isinstance(x, str) for x in self.args.values())
        if self.log_lik and not (files and self.args.keys() <= {"full"}):
            raise section.problem(
                "a file of log likelihoods takes full alone, the file of those of the full data",
                "args",
            )
        return self


class ReportConfig(section.Section):
    title: Annotated[str, Field(max_length=MAX_TITLE)] | None = None  # None: the experiment's name


class Experiment(Settings):
    data: DataConfig
    models: Annotated[dict[section.Name, ModelConfig], section.NAMED]
    report: ReportConfig = ReportConfig()

    def makes(self, stage: str) -> bool:
        """Whether the config asks for a stage."""
        match stage:
            case "surrogates":
                return self.folds.from_full_data
            case "subsample":
                return isinstance(self.folds, Subsampling)
            case "evidence":
                return isinstance(self.folds, Cumulative)
            case "diagnose":
                return not isinstance(self.folds, Cumulative)
            case "cut":
                return self.folds.samples and self.cv.fold_batches == "auto"
            case "warmup" | "sample":
                return self.folds.samples
        return True

    @model_validator(mode="after")
    def _known_reference(self) -> "Experiment":
        name = self.compare.reference
        if name is not None and name not in self.models:
            near = nearest(name, self.models)
            raise section.problem(f"no model {name!r}; {near}", "compare", "reference")
        return self

    @model_validator(mode="after")
    def _until_can_be_met(self) -> "Experiment":
        until = self.cv.until
        if until and until.decide and not until.mcse_over_se and len(self.models) == 1:
            raise section.problem("needs another model to decide against", "cv", "until", "decide")
        return self

    @model_validator(mode="after")
    def _needs_models(self) -> "Experiment":
        """Refuse log likelihoods where draws of a model are needed."""
        for name, model in self.models.items() if self.asks_for_models else ():
            if model.log_lik:
                raise section.problem(
                    f"log likelihoods alone are no model, which {self.asks_for_models} needs",
                    *("models", name, "model"),
                )
        return self

    @property
    def asks_for_models(self) -> str:
        """The key by which all models have to be sampled, if any."""
        if self.folds.from_full_data or not self.folds.samples:
            exact = isinstance(self.folds, Subsampling | Cumulative)
            return f"folds.{'scheme' if exact else 'exact'}"
        return "cv.until" if self.cv.until else "joint_by" if self.joint_by else ""

    @model_validator(mode="after")
    def _can_grow(self) -> "Experiment":
        grow = self.folds.until if isinstance(self.folds, Subsampling) else None
        if grow and grow.decide and len(self.models) == 1:
            raise section.problem(
                "needs another model to decide against", "folds", "until", "decide"
            )
        return self


FOLDERS = {
    "datasets": "downloaded data",
    "inputs": "what a Python session was given",
    "paper": "the paper's page",
    "loo_subsampling": "the LOO-SS paper's page",
    "cumulative": "the page of cumulative cross-validation",
    "subspace": "the page of chains on a subspace",
    "nested_rhat": "the page of nested R-hat",
}
"""reserved folders of the results"""


class Config(section.Section):
    seed: Annotated[int, Field(ge=0, le=section.MAX_SEED)]
    precision: Literal["float64", "float32", "auto"] = "float64"
    experiments: Annotated[dict[section.Name, Experiment], section.NAMED]

    @model_validator(mode="after")
    def _folders_of_their_own(self) -> "Config":
        for name in self.experiments:
            if name in FOLDERS:
                raise section.problem(
                    f"results/{name} is the folder of {FOLDERS[name]}; rename the experiment",
                    "experiments",
                    name,
                )
        return self
