"""The context that a pipeline's steps share.

What may stand in it: anything `flujo_client.serial` can carry, since every attempt gets it as a snapshot inside its message
and works on that copy (M-005, C-15).
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class ContextState(Enum):
    """How far a context's run has come (M-415)."""

    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"


class PipelineContext(BaseModel):
    """The context used when a run is given context data and its pipeline names no model of its own.

    Unknown fields are kept; assignment is validated. `step_outputs` holds every successful step's output by the step's name;
    `import_artifacts` what an import is given under its key; a state machine writes `current_state` and goes where `next_state`
    says; `scratchpad` is yours.
    """

    model_config = ConfigDict(extra="allow", validate_assignment=True)

    run_id: str = ""
    initial_prompt: str = ""
    status: ContextState = ContextState.RUNNING
    call_count: int = 0
    step_outputs: dict[str, Any] = Field(default_factory=dict)
    import_artifacts: dict[str, Any] = Field(default_factory=dict)
    current_state: str | None = None
    next_state: str | None = None
    scratchpad: dict[str, Any] = Field(default_factory=dict)
