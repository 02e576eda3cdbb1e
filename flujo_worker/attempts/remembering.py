"""What people have answered at a step, written into its context (U-36, requirements §2.11): in its own copy, and so with its success or not at all.

It must not read an answer. In: what was asked and answered, and the answer's value. Out: the context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flujo_client.contract.context import ContextState, HumanInteraction, PipelineContext
from flujo_worker.attempts.conversation import answered

if TYPE_CHECKING:
    from flujo_worker.ports import Reply
    from flujo_worker.runtime.work import Work


def remember(work: Work, reply: Reply, output: Any) -> Any:
    """Write down who answered what: the answer is kept whole."""
    context, answer = work.context, reply.answer
    question = str(reply.question["message"])
    if answer is not None and (work.conversation is not None or isinstance(context, PipelineContext)):
        context = answered(work, question, output)
    if not isinstance(context, PipelineContext):
        return context
    done = HumanInteraction(step=work.step.name, question=question, answer=output)
    if answer is not None:
        done = done.model_copy(update={"actor": answer.actor, "note": answer.note, "at": answer.at})
    context.hitl_history = [*context.hitl_history, done]
    return context


def going_on(context: Any) -> Any:
    """Say in a context that nobody is waited for any more."""
    if isinstance(context, PipelineContext):
        context.status, context.pause_message = ContextState.RUNNING, None
    return context
