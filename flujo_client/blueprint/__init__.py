"""A pipeline in a file: YAML to pipeline and back (docs/reference/blueprints.md)."""

from flujo_client.blueprint import kinds
from flujo_client.blueprint.document import to_text
from flujo_client.blueprint.load import load_file, load_text

__all__ = ["kinds", "load_file", "load_text", "to_text"]
