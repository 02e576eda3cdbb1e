"""The payloads of a pipeline's hooks: one for each of the six kinds of event in a run.

Values only: a change that a hook makes in one has no effect. Workers make them.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from flujo_client.contract.results import PipelineResult, StepResult


class Payload(BaseModel):
    """The fields of every payload.

    Attributes:
        run_id: the run it happened to; a child run has its own.
        pipeline_name: what that run is listed under.
        context: a copy of the context at this point; None for a run without one.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    event_name: str
    run_id: str
    pipeline_name: str
    context: Any = None


class PreRunPayload(Payload):
    """A run is about to begin.

    Attributes:
        initial_input: the run's input.
    """

    event_name: Literal["pre_run"] = "pre_run"
    initial_input: Any


class PostRunPayload(Payload):
    """A run has ended, successfully or not.

    Attributes:
        pipeline_result: what `RunHandle.result` gives.
    """

    event_name: Literal["post_run"] = "post_run"
    pipeline_result: PipelineResult


class StepPayload(Payload):
    """The fields of a step's payload.

    Attributes:
        step_name: the step.
        address: the scope it is in, `""` for the run's own sequence.
    """

    step_name: str
    address: str = ""


class PreStepPayload(StepPayload):
    """A step is about to be tried for the first time.

    Attributes:
        step: the step as the pipeline has it.
        step_input: its input.
    """

    event_name: Literal["pre_step"] = "pre_step"
    step: Any
    step_input: Any


class PostStepPayload(StepPayload):
    """A step has succeeded, and is about to be merged.

    Attributes:
        step_result: the result of its last attempt; `attempts` is that attempt's number.
    """

    event_name: Literal["post_step"] = "post_step"
    step_result: StepResult


class OnStepFailurePayload(StepPayload):
    """A step has failed permanently.

    Attributes:
        step_result: the result of its last attempt, with the reason as `feedback`.
    """

    event_name: Literal["on_step_failure"] = "on_step_failure"
    step_result: StepResult


class OnPauseRequestedPayload(StepPayload):
    """A person is asked, and the run waits for the answer.

    Attributes:
        message: the question.
        input_schema: the JSON schema of the answer; None for any.
    """

    event_name: Literal["on_pause_requested"] = "on_pause_requested"
    message: str
    input_schema: dict[str, Any] | None = None


HookPayload: TypeAlias = (
    PreRunPayload | PostRunPayload | PreStepPayload | PostStepPayload | OnStepFailurePayload | OnPauseRequestedPayload
)
"""Any payload."""

PAYLOADS: tuple[type[Payload], ...] = (
    PreRunPayload,
    PostRunPayload,
    PreStepPayload,
    PostStepPayload,
    OnStepFailurePayload,
    OnPauseRequestedPayload,
)
