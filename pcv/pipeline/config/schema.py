"""The JSON schema of a config file."""

from pathlib import Path
from typing import Any

from pcv.pipeline.config.sections import Config

SCHEMA = Path(__file__).parents[3] / "workflow/schemas/config.schema.json"


def json_schema() -> dict[str, Any]:
    """The JSON schema of a config file, for editors and validators."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, **Config.model_json_schema()}
