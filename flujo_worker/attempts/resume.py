"""Going on with a person's answer, or with an event: answer → typed value → context. No answer: its time was over.

An answer to the question of a tool's agent is that agent's: the step is performed again, and finds it there.
"""

from __future__ import annotations

from typing import Any

from flujo_client.errors import HumanInputError, SerializationError
from flujo_client.pipeline.human import Answered
from flujo_client.serial import Packed, decode
from flujo_worker.attempts.conversation import going_on, remember
from flujo_worker.attempts.step import StepAttempt
from flujo_worker.domain.human import ESCALATES, REFUSED
from flujo_worker.errors import StoreError
from flujo_worker.ports import HumanAnswer, Reply
from flujo_worker.runtime.attempt_run import AttemptRun, Done, Work
from flujo_worker.runtime.write_context import absorb

_AT_LEAST_S = 0.001
"""0 would be for ever."""


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
        return await StepAttempt(work, run).perform()
    output = _output(work, work.reply)
    if "event" not in work.reply.question:
        context = remember(work, context, work.reply, output)
    return Done(output, absorb(work.step, output, context))


def is_for_tool(reply: Reply) -> bool:
    """Return whether the agent behind a tool asked, and not the step itself."""
    return "tool" in reply.question


def _output(work: Work, reply: Reply) -> Any:
    if reply.answer is not None:
        return _read(work, reply, reply.answer)
    step, rules = work.step, work.step.rules()
    assert isinstance(step, Answered), "only these have a time"
    if rules["on_expiry"] == "default":
        return step.read(step.default)
    waited_s = reply.question["expires_s"]
    escalates = rules["on_expiry"] == "escalate" and not reply.question.get("escalated")
    message, code = f"the question of step '{step.name}' was not answered within {waited_s:g} s", "QUESTION_EXPIRED"
    if "event" in rules:
        waited_s, code = rules["expires_s"], "EVENT_TIMED_OUT"
        message = f"step '{step.name}' got no event '{rules['event']}' within {waited_s:g} s"
    raise HumanInputError(message, code=ESCALATES if escalates else code, details={"waited_s": waited_s})


def _read(work: Work, reply: Reply, answer: HumanAnswer) -> Any:
    """Read the value as the step's type; where an event does not fit, the error says for how long the step waits for another."""
    try:
        value = _value(work, answer.value)
        return work.step.read(value) if isinstance(work.step, Answered) else value
    except HumanInputError as error:
        if "event" not in reply.question or (expires_s := reply.question["expires_s"]) is None:
            raise
        left_s = max(_AT_LEAST_S, expires_s - answer.waited_s)
        raise HumanInputError(error.message, code=error.error_code, details={"left_s": left_s}) from None


def _value(work: Work, packed: Packed) -> Any:
    try:
        return decode(packed.tree(), resolve=work.resolve, path="answer")
    except SerializationError as error:  # of a class that cannot be imported here: a person can answer in plain data
        raise HumanInputError(error.message, code=REFUSED) from None
