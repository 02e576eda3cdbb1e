"""Records the fields of context models, so that workers know which ones a run's context was written with."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from pydantic import BaseModel

from flujo_client.config.manager import Settings
from flujo_client.gateway import plan_requests
from flujo_client.gateway.effects import Operation, query

_RECORDED: WeakKeyDictionary[type[BaseModel], set[str]] = WeakKeyDictionary()
"""In which databases this process has recorded the fields of a model."""


def record_context_fields(settings: Settings, model: type[BaseModel] | None, connection: Any = None) -> Operation[None]:
    """Record the fields of a pipeline's context model: once in this process, or in each of the caller's own transactions."""
    if model is None:
        return
    recorded, database = _RECORDED.setdefault(model, set()), settings.database()
    if connection is None and database in recorded:
        return
    yield from query(plan_requests.record_context_fields(model), connection)
    if connection is None:
        recorded.add(database)
