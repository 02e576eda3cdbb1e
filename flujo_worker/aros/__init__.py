"""AROS: a model's text to a value that a schema holds for, honestly. Pure: no clock, no files, no services."""

from flujo_client.contract.processing import ProcessingSettings
from flujo_worker.aros.outcome import ParseOutcome, Preview, Transform
from flujo_worker.aros.parse import parse, prepare

__all__ = ["ParseOutcome", "Preview", "ProcessingSettings", "Transform", "parse", "prepare"]
