"""Write the JSON schema: ``python -m pcv.pipeline.config``."""

import json

from pcv.pipeline.config.schema import SCHEMA, json_schema

SCHEMA.write_text(json.dumps(json_schema(), indent=2) + "\n")
