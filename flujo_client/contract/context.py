"""The context that a pipeline's steps share.

It may contain anything that `flujo_client.serial` can carry: every attempt gets a snapshot inside its message, and works on that copy.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from flujo_client.contract.commands import ExecutedCommandLog

TASK_FIELDS = ("is_background_task", "task_id", "parent_run_id", "background_error", "background_error_category")
"""The part of a context about a run in the background, which only that run has."""


class ContextState(Enum):
    """The status of a context's run."""

    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"


class HumanInteraction(BaseModel):
    """One question to a person and its answer; `answer` is None where the question expired.

    `at` is when the answer was given, in unix seconds.
    """

    step: str
    question: str
    answer: Any = None
    actor: str | None = None
    note: str | None = None
    at: float | None = None


class ConversationTurn(BaseModel):
    """A message of the `assistant` or the `user`; `step` is the step whose output it is, None for a person's."""

    role: Literal["user", "assistant"]
    content: str
    step: str | None = None


class PipelineContext(BaseModel):
    """The context used when a run is given context data and its pipeline names no model.

    Unknown fields are retained; assignment is validated. `step_outputs` has every successful step's output by name, `import_artifacts`
    the inputs of nested pipelines. A state machine writes `current_state` and reads `next_state`. `scratchpad` is yours. `hitl_history`
    has the questions to people and their answers, `conversation_history` the turns of conversations, `command_log` the turns of agentic
    loops. While a question is open, `status` is paused and `pause_message` is its text. A background run has `is_background_task`,
    `task_id` (its id) and `parent_run_id`, and the reason why it failed in `background_error` and `background_error_category`.
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
    hitl_history: list[HumanInteraction] = Field(default_factory=list)
    command_log: list[ExecutedCommandLog] = Field(default_factory=list)
    conversation_history: list[Any] = Field(default_factory=list)
    pause_message: str | None = None
    is_background_task: bool = False
    task_id: str | None = None
    parent_run_id: str | None = None
    background_error: str | None = None
    background_error_category: str | None = None
