"""The config of a run as types, validated before anything is computed.

config/README.md documents every key; ``python -m pcv.pipeline.config`` writes the JSON schema.

>>> from pathlib import Path
>>> config = load(Path("config/config.yaml"))
>>> config.experiments["rats"].cv.draws
200
>>> stage_config(config, "rats", "sample", "slopes")["cv"]
{'draws': 200, 'until': None, 'store': 'draws'}
"""

from pcv.pipeline.config.by_stage import stage_config
from pcv.pipeline.config.reading import load, parse
from pcv.pipeline.config.schema import SCHEMA, json_schema
from pcv.pipeline.config.sections import (
    Config,
    DataConfig,
    Experiment,
    ModelConfig,
    ReportConfig,
)

__all__ = [
    "SCHEMA",
    "Config",
    "DataConfig",
    "Experiment",
    "ModelConfig",
    "ReportConfig",
    "json_schema",
    "load",
    "parse",
    "stage_config",
]
