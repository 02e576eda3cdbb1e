"""JSON Schemas as they are written in pipelines: what can be told of one before anything is sent."""

from __future__ import annotations

import json
from typing import Any

from flujo_client.errors import FlujoError
from flujo_client.serial import canonical


def wrong_schema(schema: Any) -> str | None:
    """Say why this is no JSON Schema; None: it is one, or nobody here can tell (then the workers do)."""
    try:
        written = canonical(schema)
    except FlujoError as error:
        return f"is no JSON: {error.message}"
    try:
        import jsonschema_rs  # a worker's need; where only the client is installed, the workers find it out
    except ImportError:
        return None
    try:
        jsonschema_rs.Draft202012Validator(json.loads(written))
    except (jsonschema_rs.ValidationError, ValueError) as error:
        return f"is no JSON Schema: {str(error).splitlines()[0][:200]}"
    return None
