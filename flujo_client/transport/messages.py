"""Write Celery messages, protocol 2: the headers and the signed body of each, in whatever form a broker then stores them.

In: envelopes. Out: `TaskMessage`s, which `broker.py` pushes to Redis and `rabbit.py` publishes to RabbitMQ.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flujo_client.contract.envelope import TASK_SWEEP, TASKS, Envelope, JoinSignal
from flujo_client.transport.chords import membership
from flujo_client.transport.wire import MAX_BYTES, dump

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flujo_client.config.manager import Settings

SENT_HEADER: Final = "flujo_sent_at"
_EMBED: Final[dict[str, Any]] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
_UNUSED: Final = dict.fromkeys(("shadow", "eta", "expires", "group", "group_index", "parent_id", "stamped_headers"))
_OURS: Final = {"lang": "py", "kwargsrepr": "{}", "origin": "flujo", "ignore_result": True, "replaced_task_nesting": 0}


class TaskMessage(NamedTuple):
    headers: Mapping[str, Any]
    """All of them; the task's id is `id`."""
    body: bytes
    queue: str
    priority: int | None


class MessageWriter:
    """Writes messages, as the settings say: signed, of bounded size, and part of chords if these are counted."""

    def __init__(self, settings: Settings) -> None:
        self._keys, self._control = settings.keys(), settings.worker.control_queue
        self._max_bytes = settings.limits.message_max_bytes or MAX_BYTES
        self._counts_chords = settings.counts_chords

    def write(self, envelope: Envelope) -> TaskMessage:
        """Write the message of an envelope: work in a fan-out as a part of its chord, if that is counted, and a join as its join signal."""
        run, priority = envelope.ticket.run, envelope.ticket.priority
        headers: dict[str, Any] = {"flujo_run": run, "flujo_step": envelope.step}
        if envelope.kind != "join":
            headers["shadow"] = shown_name(envelope.ticket.reference, envelope.step)
        embed = _EMBED
        if part := self.part_of(envelope):
            headers |= {"group": part["group_id"], "group_index": part["group_index"]}
            embed = {**_EMBED, "chord": part["chord"]}
        joins = envelope.kind == "join"
        args: tuple[Any, ...] = ([], JoinSignal(run, envelope.address).to_wire()) if joins else (envelope.to_wire(),)
        body, task = self._body(args, embed), TASKS[envelope.kind]
        return task_message(task, body, task_id=envelope.key, queue=envelope.queue, headers=headers, priority=priority)

    def part_of(self, envelope: Envelope) -> dict[str, Any]:
        """Return the options that make an envelope's message a part of its chord; none if it is part of no chord that is counted."""
        lanes, ticket = envelope.lanes if self._counts_chords else {}, envelope.ticket
        return membership(ticket.run, lanes, queue=self._control, priority=ticket.priority)

    def request_sweep(self, queue: str) -> TaskMessage:
        """Write the message that asks a worker to sweep."""
        body, task_id = self._body((), _EMBED), str(uuid.uuid4())
        return task_message(TASK_SWEEP, body, task_id=task_id, queue=queue, headers={}, priority=None)

    def _body(self, args: tuple[Any, ...], embed: Mapping[str, Any]) -> bytes:
        return dump((args, {}, embed), keys=self._keys, max_bytes=self._max_bytes)


def task_message(
    task: str, body: bytes, *, task_id: str, queue: str, headers: Mapping[str, Any], priority: int | None
) -> TaskMessage:
    """Return a message with the headers of a task that is sent now."""
    return TaskMessage({**task_headers(task, task_id), SENT_HEADER: time.time(), **headers}, body, queue, priority)


def shown_name(reference: str, step: str) -> str:
    """Return the name under which logs, `celery inspect` and Flower show an attempt: its pipeline and its step, in 200 printable characters."""
    name = f"{reference}/{step}"[:200]
    return name if name.isprintable() else "".join(each if each.isprintable() else "?" for each in name)


def task_headers(task: str, task_id: str) -> dict[str, Any]:
    """Return the headers of a message that is to be executed once, at once, and reports nothing.

    The reprs are short, for Flower and logs must not show what is in a context.
    """
    own = {"task": task, "id": task_id, "root_id": task_id, "argsrepr": f"({task_id})"}
    return {**_UNUSED, **_OURS, **own, "retries": 0, "timelimit": [None, None], "stamps": {}}
