"""The config of a run as types, validated before anything is computed.

config/README.md documents every key; ``python -m pcv.pipeline.config`` writes the JSON schema.

>>> from pathlib import Path
>>> config = load(Path("config/config.yaml"))
>>> config.experiments["rats"].cv.draws
200
>>> stage_config(config, "rats", "sample", "slopes")
{'scores': ['log'], 'cv': {'draws': 200, 'until': None, 'store': 'draws'}}
"""

from pcv.analysis.stopping.config import UntilConfig
from pcv.base.section import MAX_SEED, MODEL, OBJECT, SCORES, DecideConfig, Score, Section
from pcv.core.settings import MANY_CHAINS, CompareConfig, CvConfig, FitConfig, KernelConfig
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
from pcv.folds.sections.coordinates import Coordinates
from pcv.folds.sections.subsampling import GrowConfig, Subsampling
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
    "GrowConfig",
    "HBlock",
    "HVBlock",
    "KFold",
    "KernelConfig",
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
    "Subsampling",
    "UntilConfig",
    "json_schema",
    "load",
    "parse",
    "stage_config",
]
