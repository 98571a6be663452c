"""How problems are computed: settings of the fit, of the folds' chains and of what is reported."""

from collections.abc import Mapping
from numbers import Integral
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from pcv.analysis.stopping.config import UntilConfig, looks
from pcv.base.section import Count, Score, Section, Text, doubling, from_replicates, problem
from pcv.folds.schemes import FoldScheme
from pcv.folds.sections.cumulative import Cumulative


class FitConfig(Section):
    chains: Annotated[int, Field(ge=4)] = 4
    warmup: Annotated[int, Field(ge=100)] = 1000
    draws: Annotated[int, Field(ge=100)] = 1000
    target_accept: Annotated[float, Field(gt=0.5, lt=1)] | None = None
    file: Text | None = None  # existing draws; {model} stands for the model's name
    approximation: Literal["laplace", "normal", "pathfinder", "multipathfinder"] | None = None
    allow_bad_fit: bool = False

    @model_validator(mode="after")
    def _one_posterior(self) -> "FitConfig":
        if self.file and self.approximation:
            raise problem("existing draws and approximation exclude each other; keep one", "file")
        return self


def _or_number(schema: dict[str, Any]) -> None:
    number = schema["properties"].pop("number")["anyOf"][0]
    section = dict(schema)
    schema.clear()
    schema["anyOf"] = [number, section]


class LeadingConfig(Section):
    """How many directions: a number, or as many as have a share of the variance."""

    model_config = ConfigDict(json_schema_extra=_or_number)
    number: Count | None = None
    share: Annotated[float, Field(gt=0, le=1)] | None = None  # of the posterior
    predictive_share: Annotated[float, Field(gt=0, le=1)] | None = None  # of log likelihoods

    @model_validator(mode="before")
    @classmethod
    def _number(cls, given: Any) -> Any:
        if isinstance(given, dict | LeadingConfig):
            return given
        if isinstance(given, bool) or not isinstance(given, int):
            raise problem("must be a whole number, {share: 0.99} or {predictive_share: 0.99}")
        if given < 1:
            raise problem(f"must be at least 1, is {given}")
        return {"number": given}

    @model_validator(mode="after")
    def _one(self) -> "LeadingConfig":
        if [self.number, self.share, self.predictive_share].count(None) != 2:
            raise problem("give a number, or one of share and predictive_share")
        return self


class KernelConfig(Section):
    subspace: LeadingConfig


MANY_CHAINS, MOST_STARTS = 32, 32
"""chains per fold from which on `superchains: auto` forms superchains, and the most of them: more
make nested R-hat noisier (`benchmarks/nested.py`)"""


class CvConfig(Section):
    chains: Annotated[int, Field(ge=2)] = 8
    warmup: Count | Literal["auto"] = 50
    draws: Count = 200
    until: UntilConfig | None = None  # None: all folds make `draws`
    batch_size: Count = 50
    store: Literal["draws", "sums"] = "draws"
    fold_batches: Count | Literal["auto"] = 1
    memory_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    superchains: Annotated[int, Field(ge=2)] | Literal["auto"] | None = "auto"
    adapt: Literal["auto", "always", "never"] = "auto"
    start_scale: Annotated[float, Field(ge=1)] = 1.0

    @model_validator(mode="after")
    def _forgets_starts(self) -> "CvConfig":
        number = self.num_superchains
        if self.warmup == "auto" and not (number >= 4 and self.chains >= 2 * number):
            raise problem(
                "auto needs four superchains or more, of two chains or more: take chains: 32, 64, "
                "100, ... and superchains: auto",
                "warmup",
            )
        return self

    @model_validator(mode="after")
    def _whole_batches(self) -> "CvConfig":
        fewest = 1 if self.num_superchains else 2
        batches = max(fewest, -(-self.draws // self.batch_size))
        if self.draws != batches * self.batch_size:
            raise problem(
                f"must be a multiple of batch_size and at least two batches, is {self.draws} with"
                f" batch_size {self.batch_size}; take {batches * self.batch_size}",
                "draws",
            )
        return self

    @model_validator(mode="after")
    def _equal_superchains(self) -> "CvConfig":
        if isinstance(self.superchains, int) and self.chains % self.superchains:
            raise problem(
                f"{self.superchains} superchains of {self.chains} chains: must be of equal size",
                "superchains",
            )
        if self.superchains == self.chains:
            raise problem(
                f"{self.superchains} superchains of {self.chains} chains: must have two or more "
                "each; null lets each chain start apart",
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
                raise problem(
                    f"must be a multiple of batch_size, {self.batch_size}, and at least two "
                    f"batches, is {number}",
                    "until",
                    name,
                )
        if self.until.fold_mcse_over_se is not None and self.fold_batches != 1:
            raise problem(
                "needs all folds in one job (fold_batches: 1); take fold_mcse or mcse_over_se",
                "until",
                "fold_mcse_over_se",
            )
        return self

    @property
    def most_draws(self) -> int:
        """Draws per chain of folds that do not stop earlier."""
        return self.until.max_draws if self.until else self.draws

    @property
    def least_draws(self) -> int:
        """Draws per chain before any fold stops."""
        return self.until.min_draws if self.until else self.draws

    @property
    def lengths(self) -> list[int]:
        """Draws per chain at which single folds may stop."""
        if self.until is None:
            return [self.draws]
        return looks(self.until.min_draws, self.until.max_draws, self.batch_size)

    @property
    def rounds(self) -> list[int]:
        """Draws per chain after each round, where the comparison decides which folds continue."""
        if self.until is None or not self.until.of_comparison:
            return [self.most_draws]
        return doubling(self.until.min_draws, self.until.max_draws)

    @property
    def num_superchains(self) -> int:
        """Number of superchains, whose chains start at one point; 0: all chains start apart."""
        if self.superchains != "auto":
            return self.superchains or 0
        most = min(max(4, self.chains // 8), MOST_STARTS) if self.chains >= MANY_CHAINS else 0
        return max((k for k in range(3, most + 1) if self.chains % k == 0), default=0)


def chain_settings(chains: Any, draws: Any, warmup: Any, until: Any, more: Any) -> Any:
    """The keys of `CvConfig` for a call's arguments, not yet validated, with batches of up to 50
    draws.

    Args:
        chains, draws, warmup, until: its keys of these names.
        more: further keys.
    """
    fewest = until.get("min_draws", 200) if isinstance(until, Mapping) else draws
    section = {"chains": chains, "draws": draws, "warmup": warmup}
    if isinstance(fewest, Integral):
        several = 1 if int(fewest) < SHORT and _superchains(chains, more) else 2
        section["batch_size"] = batch_size_of(int(fewest), several)
    if until is not None:
        section["until"] = until
    return {**section, **(more or {})} if isinstance(more, Mapping | None) else more


def batch_size_of(draws: int, fewest: int = 2) -> int:
    """The largest divisor of a number of draws, up to `MOST_PER_BATCH`, that makes at least so many
    batches.

    >>> batch_size_of(200), batch_size_of(60), batch_size_of(101)
    (50, 30, 1)
    """
    sizes = range(min(MOST_PER_BATCH, max(draws // fewest, 1)), 0, -1)
    return next(size for size in sizes if draws % size == 0)


MOST_PER_BATCH = 50
"""draws of a batch, where only their number is given"""
SHORT = 40
"""draws below which chains of superchains are a single batch, so that nested R-hat alone is judged:
R-hat asks for longer ones"""


def _superchains(chains: Any, more: Any) -> int:
    """The number of superchains of a `cv` section that is not yet validated."""
    asked = more.get("superchains", "auto") if isinstance(more, Mapping) else "auto"
    if not isinstance(chains, int):
        return 0
    return CvConfig.model_construct(chains=chains, superchains=asked).num_superchains


class CompareConfig(Section):
    reference: str | None = None  # None: the best model


class Settings(Section):
    """What `pcv.core.cross_validate` takes besides the problems."""

    folds: FoldScheme
    predictive: Literal["auto", "marginal", "plain"] = "auto"
    estimator: Literal["two_sided", "own"] = "two_sided"
    scores: Annotated[list[Score], Field(min_length=1)] = ["log"]
    joint_by: Text | None = None  # column of groups, scored jointly in place of units
    predictions: Annotated[int, Field(ge=0)] = 400  # replicates of each tested unit
    predict: Literal["conditional", "path"] = "conditional"  # what these are given
    fit: FitConfig = FitConfig()
    kernel: KernelConfig | None = None  # None: chains move in all directions
    cv: CvConfig = CvConfig()
    compare: CompareConfig = CompareConfig()

    @property
    def without_model(self) -> "Settings":
        """The same for log likelihoods alone: they have no predictions, other scores or kernel."""
        return self.model_copy(update={"scores": ["log"], "predictions": 0, "kernel": None})

    @model_validator(mode="after")
    def _sampled_all(self) -> "Settings":
        if not self.folds.from_full_data:
            return self
        if set(self.scores) != {"log"}:
            raise problem("only the log score is available without sampling every fold", "scores")
        if self.cv.until and self.cv.until.fold_mcse is None:
            raise problem("not every fold is sampled, so the rule must be fold_mcse", "cv", "until")
        return self

    @model_validator(mode="after")
    def _simulates(self) -> "Settings":
        every = self.folds.samples and not self.folds.from_full_data
        if self.predict == "path" and not every:
            raise problem("paths need folds that are all sampled; leave predict out", "predict")
        return self

    @model_validator(mode="after")
    def _scores_groups(self) -> "Settings":
        scheme = self.folds
        if self.joint_by and (scheme.from_full_data or not scheme.samples):
            raise problem(
                "groups are scored in folds that are all sampled; leave joint_by or exact out",
                "joint_by",
            )
        return self

    @model_validator(mode="after")
    def _moves(self) -> "Settings":
        if self.kernel is not None and not self.folds.samples:
            raise problem("no fold is sampled here; leave kernel out", "kernel")
        return self

    @model_validator(mode="after")
    def _adds_up(self) -> "Settings":
        if isinstance(self.folds, Cumulative) and set(self.scores) != {"log"}:
            raise problem("only the log score adds up to the evidence; leave scores out", "scores")
        return self

    @model_validator(mode="after")
    def _batches_enough(self) -> "Settings":
        across = [name for name in self.scores if from_replicates(name)]
        if across and self.cv.most_draws < 2 * self.cv.batch_size:
            raise problem(
                f"{min(across)} has no Monte Carlo error with one batch of draws; take two, "
                f"draws: {2 * self.cv.batch_size}",
                "scores",
            )
        return self
