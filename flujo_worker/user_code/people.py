"""The question to a person: its text and schema, and the context that shows that the run waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flujo_client.contract.context import ContextState, PipelineContext
from flujo_client.errors import HumanInputError
from flujo_client.serial import Packed, stored
from flujo_client.sizes import MAX_QUESTION
from flujo_worker.runtime.call_args import CONTEXT
from flujo_worker.runtime.write_context import mark

if TYPE_CHECKING:
    from flujo_worker.runtime.question import UserCodeCall


def question(question: UserCodeCall) -> tuple[str, dict[str, Any] | None, Packed | None]:
    """Return the question as text and JSON Schema, and the context with the status `paused`. Values: the input, the context."""
    step = question.step
    message = question.call("message", question.value(0), CONTEXT) if step.functions() else step.text()
    if not isinstance(message, str) or not message.strip():
        raise HumanInputError(f"the message of step '{step.name}' is empty", code="EMPTY_MESSAGE")
    if len(message) > MAX_QUESTION:
        problem = (
            f"the message of step '{step.name}' has {len(message):,} characters; at most {MAX_QUESTION:,} are allowed"
        )
        raise HumanInputError(problem, code="MESSAGE_TOO_LONG")
    schema = step.schema()
    stored(schema, path=f"input_schema of step '{step.name}'")  # answers are checked against what is read back
    return message, schema, _paused(question, message)


def pause(question: UserCodeCall) -> tuple[str, Packed | None]:
    """Return what a step that raised a pause asks, and the context as for any question. Values: the input, the context. Data: the `message`."""
    message = question.data["message"].strip() or f"Step '{question.step.name}' requires human input."
    return message, _paused(question, message)


def _paused(question: UserCodeCall, message: str) -> Packed | None:
    context = question.value(1)
    if not isinstance(context, PipelineContext):
        return None
    mark(context, ContextState.PAUSED, message)
    return question.pack(context, "context")
