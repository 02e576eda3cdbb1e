"""The payloads of a pipeline's hooks: one for each of the six kinds of event in a run.

Values only: a change that a hook makes in one has no effect. Workers make them.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict

from flujo_client.contract.results import PipelineResult, StepResult


class Payload(BaseModel):
    """The fields of every payload."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    event_name: str
    run_id: str
    """The id of the run in which it happened; a child run has its own id."""
    pipeline_name: str
    """The pipeline name under which that run is listed."""
    context: Any = None
    """A copy of the context at this point; None for a run without one."""


class PreRunPayload(Payload):
    """A run is about to begin."""

    event_name: Literal["pre_run"] = "pre_run"
    initial_input: Any
    """The run's input."""


class PostRunPayload(Payload):
    """A run has ended, successfully or not."""

    event_name: Literal["post_run"] = "post_run"
    pipeline_result: PipelineResult
    """The result that `RunHandle.result` returns."""
    metadata: dict[str, Any] = {}
    """The run's metadata."""


class StepPayload(Payload):
    """The fields of a step's payload."""

    step_name: str
    """The step."""
    address: str = ""
    """The scope of the step; `""` for the run's own sequence."""


class PreStepPayload(StepPayload):
    """A step is about to be tried for the first time."""

    event_name: Literal["pre_step"] = "pre_step"
    step: Any
    """The step as the pipeline has it."""
    step_input: Any
    """Its input."""


class PostStepPayload(StepPayload):
    """A step has succeeded, and is about to be merged."""

    event_name: Literal["post_step"] = "post_step"
    step_result: StepResult
    """The result of its last attempt; `attempts` is that attempt's number."""


class OnStepFailurePayload(StepPayload):
    """A step has failed permanently."""

    event_name: Literal["on_step_failure"] = "on_step_failure"
    step_result: StepResult
    """The result of its last attempt, with the reason as `feedback`."""


class OnPauseRequestedPayload(StepPayload):
    """A person is asked, and the run waits for the answer."""

    event_name: Literal["on_pause_requested"] = "on_pause_requested"
    message: str
    """The question."""
    input_schema: dict[str, Any] | None = None
    """The JSON schema of the answer; None for any answer."""


def ends_task(_: PostRunPayload) -> None:
    """Mark a run that a Celery task waits for, as one of its hooks: a worker of the task's app does what the task's end does."""


HookPayload: TypeAlias = (
    PreRunPayload | PostRunPayload | PreStepPayload | PostStepPayload | OnStepFailurePayload | OnPauseRequestedPayload
)
"""Any payload."""

PAYLOADS: tuple[type[Payload], ...] = get_args(HookPayload)
