"""Going on with a person's answer: answer → typed value → context. No answer: its time was over.

An answer to the question of a tool's agent is that agent's: the step is performed again, and finds it there.
"""

from __future__ import annotations

from typing import Any

from flujo_client.errors import HumanInputError, SerializationError
from flujo_client.pipeline.human import HumanInTheLoopStep
from flujo_client.serial import Packed, decode
from flujo_worker.attempts.conversation import going_on, remember
from flujo_worker.attempts.step import perform_step
from flujo_worker.domain.human import ESCALATES, REFUSED
from flujo_worker.errors import StoreError
from flujo_worker.ports import Reply
from flujo_worker.runtime.attempt_run import AttemptRun, Done, Work
from flujo_worker.runtime.write_context import absorb


async def perform_resume(work: Work, run: AttemptRun) -> Done:
    """Read the result of the question.

    Raises:
        StoreError: there was no question.
        Exception: the answer does not fit, or there is none and the step cannot continue without it.
    """
    run.enter("system")
    if work.reply is None:
        raise StoreError(f"no open question from step '{work.step.name}'")
    context = going_on(run.context)
    if is_for_tool(work.reply):  # what it is given of people's answers, it remembers
        return await perform_step(work, run)
    output = _output(work, work.reply)
    return Done(output, absorb(work.step, output, remember(work, context, work.reply, output)))


def is_for_tool(reply: Reply) -> bool:
    """Return whether the agent behind a tool asked, and not the step itself."""
    return "tool" in reply.question


def _output(work: Work, reply: Reply) -> Any:
    step: Any = work.step
    if reply.answer is not None:
        value = _value(work, reply.answer.value)
        return step.read(value) if isinstance(step, HumanInTheLoopStep) else value
    if step.on_expiry == "default":
        return step.read(step.default)
    escalates = step.on_expiry == "escalate" and not reply.question.get("escalated")
    message = f"the question of step '{step.name}' was not answered within {reply.question['expires_s']:g} s"
    code = ESCALATES if escalates else "QUESTION_EXPIRED"
    raise HumanInputError(message, code=code, details={"waited_s": reply.question["expires_s"]})


def _value(work: Work, packed: Packed) -> Any:
    try:
        return decode(packed.tree(), resolve=work.resolve, path="answer")
    except SerializationError as error:  # of a class that cannot be imported here: a person can answer in plain data
        raise HumanInputError(error.message, code=REFUSED) from None
