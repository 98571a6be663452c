"""The config of a run as types, validated before anything is computed.

config/README.md documents every key; ``python -m pcv.pipeline.config`` writes the JSON schema.

>>> from pathlib import Path
>>> config = load(Path("config/config.yaml"))
>>> config.experiments["rats"].cv.draws
200
>>> stage_config(config, "rats", "sample", "slopes")
{'scores': ['log'], 'cv': {'draws': 200, 'until': None, 'store': 'draws'}}
"""

from pcv.analysis.stopping.config import DecideConfig, UntilConfig
from pcv.base.section import MAX_SEED, MODEL, OBJECT, SCORES, Score, Section
from pcv.folds.coordinates import Coordinates
from pcv.folds.schemes import (
    SCHEMES,
    Blocks,
    FixedFolds,
    FoldScheme,
    FoldsOfFile,
    HBlock,
    HVBlock,
    KFold,
    LeaveFutureOut,
    LeaveOneGroupOut,
    LeaveOneLocationOut,
    LeaveOneOut,
    LeavePOut,
    SpatialBlocks,
    Splitter,
)
from pcv.pipeline.config.by_stage import stage_config
from pcv.pipeline.config.reading import load, parse
from pcv.pipeline.config.schema import SCHEMA, json_schema
from pcv.pipeline.config.sections import (
    MANY_CHAINS,
    CompareConfig,
    Config,
    CvConfig,
    DataConfig,
    Experiment,
    FitConfig,
    ModelConfig,
    ReportConfig,
)

__all__ = [
    "MANY_CHAINS",
    "MAX_SEED",
    "MODEL",
    "OBJECT",
    "SCHEMA",
    "SCHEMES",
    "SCORES",
    "Blocks",
    "CompareConfig",
    "Config",
    "Coordinates",
    "CvConfig",
    "DataConfig",
    "DecideConfig",
    "Experiment",
    "FitConfig",
    "FixedFolds",
    "FoldScheme",
    "FoldsOfFile",
    "HBlock",
    "HVBlock",
    "KFold",
    "LeaveFutureOut",
    "LeaveOneGroupOut",
    "LeaveOneLocationOut",
    "LeaveOneOut",
    "LeavePOut",
    "ModelConfig",
    "ReportConfig",
    "Score",
    "Section",
    "SpatialBlocks",
    "Splitter",
    "UntilConfig",
    "json_schema",
    "load",
    "parse",
    "stage_config",
]
