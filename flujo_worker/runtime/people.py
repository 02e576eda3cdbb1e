"""Ask people in the middle of a call. The attempt ends with one question for all open ones, and finds the answers when it is performed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from flujo_client.errors import PausedException, SerializationError
from flujo_client.frozen import frozen
from flujo_client.serial import decode
from flujo_worker.domain.asking import NO_PART, Ask, message_of, part_of
from flujo_worker.ports import Reply
from flujo_worker.runtime.attempt_run import Work, current_run, in_thread
from flujo_worker.runtime.fault_text import message_of as text_of


@frozen
class GivenAnswer:
    """What a person answered to one call."""

    value: Any = None
    note: str | None = None
    has_expired: bool = False
    """True if no answer came in time; then `value` is None."""


Reader = Callable[[GivenAnswer], Any]
"""Converts an answer for the call. Raises ValueError: the answer does not fit, so the question is asked again, with this reason."""


async def answers_to(asked: Sequence[tuple[Ask, Reader]]) -> list[Any]:
    """Return the answers to all questions. Raises PausedException, with which the attempt must end: some are unanswered."""
    read = [await answer_found(ask, reader) for ask, reader in asked]
    missing = [each for each in read if isinstance(each, Ask)]
    if missing:
        raise pausing(missing, PausedException(message_of(missing)))
    return read


async def ask_more(asked: Sequence[tuple[Ask, Reader]]) -> None:
    """Add unanswered questions to the one for which the attempt pauses."""
    run = current_run()
    assert run is not None, "only attempts ask"
    read = [await answer_found(ask, reader) for ask, reader in asked]
    run.asks.extend(each for each in read if isinstance(each, Ask))


async def answer_found(ask: Ask, reader: Reader) -> Any:
    """Return the first answer that fits, converted; without one, the question to ask."""
    run = current_run()
    assert run is not None
    assert run.work is not None, "only attempts ask"
    for reply in await in_thread(run.work.replies):
        if ask.id not in reply.question.get("asks", {}).values():
            continue
        try:
            whole = _value(run.work, reply)
            found = reader(_answer(reply, ask, whole))
        except ValueError as error:
            ask = replace(ask, refused=str(error))
            continue
        if reply.answer is not None and all(each != reply for each, _ in run.replies):
            run.replies.append((reply, whole))
        return found
    return ask


def pausing(asks: Sequence[Ask], pause: PausedException) -> PausedException:
    """Note the questions with which the attempt will end; return the exception to raise."""
    run = current_run()
    assert run is not None, "only attempts ask"
    run.asks.extend(asks)
    run.pauses.append(pause)
    return pause


async def answer_to(pause: PausedException, tool: str) -> Any:
    """Return a person's answer to the question of a tool's agent at this step: the first answer for the first occurrence, and so on.

    It does not wait: the run pauses, and once there is an answer the step is performed again from its beginning. If the same question
    occurs in the same tool, the agent's answer counts. Raises PausedException: `pause` itself; there is no answer yet.
    """
    run = current_run()
    if run is None or run.work is None or any(each is pause for each in run.pauses):  # of a tool inside this one
        raise pause
    message = text_of(pause).strip()
    run.questions[tool, message] += 1
    name = f"{tool}\n{message}\n{run.questions[tool, message]}"
    ask = Ask(blake2b(name.encode(), digest_size=16).hexdigest(), tool, tool, title=message)
    found = await answer_found(ask, lambda answer: (answer.value,))
    if isinstance(found, Ask):
        raise pausing([found], pause)
    return found[0]


def _value(work: Work, reply: Reply) -> Any:
    if reply.answer is None:
        return None
    try:
        return decode(reply.answer.value.tree(), resolve=work.resolve, path="answer")
    except SerializationError as error:  # of a class that cannot be imported here: a person can answer in plain data
        raise ValueError(error.message) from None


def _answer(reply: Reply, ask: Ask, whole: Any) -> GivenAnswer:
    if reply.answer is None:
        return GivenAnswer(has_expired=True)
    part = part_of(reply.question, ask.id, whole)
    if part is NO_PART:
        raise ValueError("has no answer")
    return GivenAnswer(part, reply.answer.note)
