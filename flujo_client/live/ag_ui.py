"""A run as AG-UI 1.0 wants it: each answer is a run of that protocol, valid on its own, whenever the browser joins."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, Final

from ag_ui import core
from ag_ui.core import BaseEvent, RunAgentInput
from ag_ui.encoder import EventEncoder

from flujo_client.api import approvals
from flujo_client.contract.approval import Approval
from flujo_client.contract.stream import Cursor
from flujo_client.errors import FlujoError, ResumeError
from flujo_client.live.host import BEAT_S, Opened
from flujo_client.live.sse import SETTLED_S
from flujo_client.live.telling import Telling

PAST_S: Final = (0.5, 5.0)
"""Seconds for which the past is gathered into a snapshot, for a browser without a cursor and for one with."""
_ENCODER: Final = EventEncoder()


async def events(opened: Opened, said: RunAgentInput | None) -> AsyncIterator[str]:
    """Yield a run of AG-UI, as server-sent events.

    Args:
        opened: the stream, from its beginning.
        said: what the browser sent: its messages are kept, and its `resume` answers questions.
    """
    run_id = opened.handle.id
    ids = (said.thread_id, said.run_id) if said else (run_id, run_id)
    telling = Telling(run_id, said.messages if said else ())
    yield _written(core.RunStartedEvent(thread_id=ids[0], run_id=ids[1], protocol_version=core.PROTOCOL_VERSION))
    has_joined = False
    try:
        for entry in (said and said.resume) or ():
            await _answer(opened, entry)
        cursor = await _gather(opened, telling)
        has_joined = True
        for each in telling.rejoined():
            yield _written(each, cursor)
        async for told in _told(opened, telling):
            yield told
        last = _last(telling, ids, is_new=said is not None and said.protocol_version is not None)
    except FlujoError as error:
        last = core.RunErrorEvent(message=error.message, code=error.error_code)
    for each in [*(telling.closed() if has_joined else ()), last]:
        yield _written(each)


async def _gather(opened: Opened, telling: Telling) -> str:
    """Read up to the cursor that the browser has, or up to now; return the cursor of the last event."""
    target = None if opened.after is None else Cursor.parse(opened.after)
    until, at = time.monotonic() + PAST_S[target is not None], ""
    while time.monotonic() < until and (event := await opened.next(SETTLED_S)) is not None:
        await telling.tell(event)
        at = event.cursor
        if target is not None and Cursor.parse(at) >= target:
            break
    return at


async def _told(opened: Opened, telling: Telling) -> AsyncIterator[str]:
    async for event in opened.events():
        if event is not None:
            yield "".join([_written(each, event.cursor) for each in await telling.tell(event)])
            continue
        yield ""
        if time.monotonic() > telling.asks_at:
            asked = await opened.handle.approvals()
            telling.asks_at = 0 if asked else time.monotonic() + BEAT_S
            if asked and await opened.handle.status() == "paused":
                telling.asked = asked
                return


def _last(telling: Telling, ids: tuple[str, str], *, is_new: bool) -> BaseEvent:
    """Return how a run of AG-UI ends; browsers that are not `is_new` know no cancelled runs."""
    end = telling.end or {}
    match end.get("status"):
        case "succeeded":
            outcome: Any = core.RunFinishedSuccessOutcome()
        case "cancelled" if is_new:
            outcome = core.RunFinishedCancelledOutcome()
        case None if telling.asked:
            outcome = core.RunFinishedInterruptOutcome(interrupts=[_interrupt(each) for each in telling.asked])
        case None:
            return core.RunErrorEvent(message="this server stops; join the run again", code="server_stops")
        case status:
            return core.RunErrorEvent(message=str(end.get("error") or f"the run is {status}"), code=status)
    return core.RunFinishedEvent(thread_id=ids[0], run_id=ids[1], outcome=outcome, result=end.get("output"))


def _interrupt(asked: Approval) -> core.Interrupt:
    is_yes_or_no = (asked.schema or {}).get("type") == "boolean"
    return core.Interrupt(
        id=asked.key,
        reason="confirmation" if is_yes_or_no else "input_required",
        message=asked.message,
        response_schema=asked.schema,
        expires_at=asked.expires_at.isoformat() if asked.expires_at else None,
        metadata={"step": asked.step, "address": asked.address},
    )


async def _answer(opened: Opened, entry: Any) -> None:
    """Answer a question. `cancelled` is a no where the question takes one, and nothing where it is closed already."""
    asked = next((each for each in await opened.handle.approvals() if each.key == entry.interrupt_id), None)
    value = entry.payload
    if entry.status == "cancelled":
        if asked is None:
            return
        if (asked.schema or {}).get("type") != "boolean":
            raise ResumeError(
                "this question needs an answer", suggestion="answer it, or cancel the run", code="ANSWER_REFUSED"
            )
        value = False
    run_id, key = (asked.run_id, asked.key) if asked else (opened.handle.id, entry.interrupt_id)
    options: Any = {"actor": opened.user.name}
    client = opened.live.client
    await client.perform(approvals.resume(client.settings, run_id, value, options, key=key))


def _written(event: BaseEvent, cursor: str = "") -> str:
    event.timestamp = event.timestamp or int(time.time() * 1000)
    return (f"id: {cursor}\n" if cursor else "") + _ENCODER.encode(event)
