"""The part of a config that each stage's result depends on."""

from typing import Any

from pcv.base.errors import PcvError, nearest
from pcv.pipeline.config.sections import Config
from pcv.pipeline.graph import STAGES


def stage_config(
    config: Config, experiment: str, stage: str, model: str | None = None
) -> dict[str, Any]:
    """The part of the config that a stage's result depends on, beyond that of the stages before.

    Args:
        config: the whole config.
        experiment: name of the experiment.
        stage: name of the stage, one of `STAGES`.
        model: name of the model, for `fit`; other stages' parts are common to all models.

    Returns:
        Nested dicts of plain values, to be hashed or passed to Snakemake as `params`.

    Raises:
        PcvError: no such experiment or model; suggests the nearest name.
    """
    if experiment not in config.experiments:
        raise PcvError(f"no experiment {experiment!r}; {nearest(experiment, config.experiments)}")
    chosen = config.experiments[experiment]
    if (stage == "fit" or model is not None) and model not in chosen.models:
        near = nearest(str(model), chosen.models)
        raise PcvError(f"experiment {experiment}: no model {model!r}; {near}")
    line = STAGES[stage]
    result = config.model_dump(include={*line.common})
    result |= chosen.model_dump(include=dict(line.keys))
    if stage == "sample" and chosen.cv.until is not None:
        del result["cv"]["draws"]
    if stage == "subsample" and getattr(chosen.folds, "until", None) is None:
        del result["compare"]
    if stage in ("plan", "subsample") and "compare" in result:
        result["models"] = sorted(chosen.models)
    if stage == "fit":
        result["model"] = chosen.models[str(model)].model_dump()
        if chosen.fit.file is not None and not chosen.folds.samples:
            result["folds"] = "none"  # to be sampled, so that their kernel is not tuned
    return result
