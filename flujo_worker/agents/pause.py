"""A question that an agent asks while it is another one's tool, and a person's answer to it (M-327).

The run pauses, and when the answer is there the step is performed again from its beginning; where the same question comes up in the same
tool, the answer is what the agent gave. It must not wait itself. In: a pause and the tool it was raised in. Out: the answer, or the pause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flujo_client.serial import decode
from flujo_worker.runtime.attempt_run import current_run, in_thread
from flujo_worker.runtime.fault_text import message_of

if TYPE_CHECKING:
    from flujo_client.errors import PausedException


async def answer_to(pause: PausedException, tool: str) -> Any:
    """Give what a person has answered to this question at this step: the first time it comes up the first answer, and so on.

    Raises:
        PausedException: `pause` itself; nobody has answered yet.
    """
    run = current_run()
    work = None if run is None else run.work
    if run is None or work is None or run.pause is pause:  # of a tool inside this one
        raise pause
    message = message_of(pause, None).strip()
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
