"""What newer releases of pydantic-ai have for durability engines. With 2.62 to 2.67 a durable agent does without it.

There tools cannot wait for external events, and a replayed call is in traces again.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

__all__ = [
    "ExternalEventError",
    "ExternalEventWaiter",
    "RequestInput",
    "external_event_scope",
    "record_durable_unit",
    "replay_scope",
]

if TYPE_CHECKING:
    from pydantic_ai.capabilities import RequestInput
    from pydantic_ai.durable_exec import (
        ExternalEventError,
        ExternalEventWaiter,
        external_event_scope,
        record_durable_unit,
        replay_scope,
    )
else:
    from pydantic_ai import capabilities, durable_exec

    def _scope(_: Any = None) -> AbstractContextManager[None]:
        return nullcontext()

    def _note(*, executed: bool) -> None:
        """Note nothing."""

    ExternalEventWaiter = getattr(durable_exec, "ExternalEventWaiter", object)
    ExternalEventError = getattr(durable_exec, "ExternalEventError", RuntimeError)
    RequestInput = getattr(capabilities, "RequestInput", None)
    external_event_scope = getattr(durable_exec, "external_event_scope", _scope)
    record_durable_unit = getattr(durable_exec, "record_durable_unit", _note)
    replay_scope = getattr(durable_exec, "replay_scope", _scope)
