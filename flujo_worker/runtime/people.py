"""Ask a person in the middle of a call: the attempt ends with the question, and finds the answer when it is performed again."""

from __future__ import annotations

from typing import Any

from flujo_client.errors import PausedException
from flujo_client.serial import decode
from flujo_worker.runtime.attempt_run import current_run, in_thread
from flujo_worker.runtime.fault_text import message_of


async def answer_to(pause: PausedException, tool: str) -> Any:
    """Return a person's answer to this question at this step: the first answer for the first occurrence, and so on.

    It does not wait: the run pauses, and once there is an answer the step is performed again from its beginning. If the same question
    occurs in the same tool, the agent's answer counts. Raises PausedException: `pause` itself; there is no answer yet.
    """
    run = current_run()
    work = None if run is None else run.work
    if run is None or work is None or run.pause is pause:  # of a tool inside this one
        raise pause
    message = message_of(pause).strip()
    run.questions[tool, message] += 1
    replies = await in_thread(work.replies)
    given = [
        (each, each.answer.value)
        for each in replies
        if each.answer is not None and each.question.get("tool") == tool and message in ("", each.question["message"])
    ]
    if len(given) < run.questions[tool, message]:
        run.pause, run.paused_in = pause, tool
        raise pause
    reply, packed = given[run.questions[tool, message] - 1]
    value = decode(packed.tree(), resolve=work.resolve, path="answer")
    run.replies.append((reply, value))
    return value
