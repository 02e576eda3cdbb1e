"""Celery's worker pool of our own: attempts are coroutines on the engine's loop, everything else runs in threads.

A message of ours goes from the consumer to the engine without Celery's tracer, unless something listens to the tracer's signals: a
signal's receivers, an instrumentation. Then it takes the tracer's way, in a thread that waits for the engine.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from celery import signals
from celery.app.task import Task
from celery.concurrency.thread import TaskPool
from celery.worker import state

from flujo_client.contract.envelope import TASKS
from flujo_worker.celery_app.consumer.channel import MOST_AT_ONCE, Capacity, connection_for
from flujo_worker.celery_app.consumer.chord_parts import ChordCounter, ChordPart
from flujo_worker.celery_app.consumer.events import PoolEvents
from flujo_worker.celery_app.consumer.private_names import is_tracer_replaced
from flujo_worker.celery_app.consumer.stopping import after
from flujo_worker.concurrency.call_context import wait_for_locks
from flujo_worker.engine.claim_ahead import Taker
from flujo_worker.engine.engine import LoopEffects
from flujo_worker.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from flujo_client.contract.envelope import AttemptKind, Envelope
    from flujo_worker.attempts.isolation import DeliveryResult
    from flujo_worker.celery_app.consumer.refusals import Refusals
    from flujo_worker.engine.engine import Engine
    from flujo_worker.engine.host import Host

logger = logging.getLogger(__name__)

POOL: Final = "flujo_worker.celery_app.consumer.pool:AttemptPool"
_TRACER_SIGNALS: Final = (
    signals.task_received,
    signals.task_prerun,
    signals.task_postrun,
    signals.task_success,
    signals.task_failure,
)


def already_acknowledged() -> None:
    """Do nothing: there is nothing left to acknowledge."""


def acknowledge_at_once(message: Any) -> Callable[[], object]:
    """Acknowledge a message when it is taken: in Redis, nothing depends on the acknowledgement."""
    message.ack()
    return already_acknowledged


@dataclass(eq=False)
class EngineRequest:
    """The request that the engine carries out for a message, as Celery's remote control lists it.

    Args:
        headers: checked ones.
        wire: the body's argument.
        chord: the body of its chord, if it is part of one.
        queue: the queue that it came from.
        consumer: Celery's consumer, with the worker's name and event dispatcher.
        acknowledge: acknowledges the message; called when its attempt has ended.
    """

    headers: Mapping[str, Any]
    wire: Mapping[str, Any]
    chord: Any
    queue: str
    consumer: Any
    acknowledge: Callable[[], object] = already_acknowledged

    acknowledged, worker_pid, is_done, task = True, None, False, SimpleNamespace(acks_late=False)

    def __post_init__(self) -> None:
        self.id = self.task_id = str(self.headers["id"])
        self.type, self.time_start = str(self.headers["task"]), time.time()
        self.name = self.headers["shadow"] or self.type

    @property
    def part(self) -> ChordPart | None:
        """Return the part that its chord counts when it has closed a branch."""
        group = self.headers["group"]
        return None if group is None else ChordPart(self.id, group, self.headers["group_index"], self.chord)

    def cancel(self, pool: AttemptPool, *, emit_retry: bool) -> None:  # noqa: ARG002 - Celery's signature
        """Hand back all requests: Celery stops at once, after SIGQUIT or a second Ctrl-C."""
        pool.hand_back()

    def info(self, safe: bool = False) -> dict[str, Any]:  # noqa: ARG002, FBT001, FBT002 - Celery's signature
        """Return what `celery inspect active` shows of a request; a body is never shown."""
        return {
            "id": self.id,
            "name": self.name,
            "args": self.headers["argsrepr"],
            "kwargs": self.headers["kwargsrepr"],
            "type": self.type,
            "hostname": self.consumer.hostname,
            "time_start": self.time_start,
            "acknowledged": True,
            "delivery_info": {"exchange": "", "routing_key": self.queue},
            "worker_pid": self.worker_pid,
        }


class Shortcut(NamedTuple):
    """How a task's messages bypass Celery's consumer.

    Attributes:
        is_open: returns whether they may now.
        take: takes one, or returns that it cannot.
        take_own: takes an attempt whose message this process has written.
    """

    is_open: Callable[[], bool]
    take: Callable[[Mapping[str, Any]], bool]
    take_own: Callable[[Envelope], None]


class AttemptPool(TaskPool, Taker):
    """Runs attempts as coroutines, as many at once as the worker's concurrency says.

    Attributes:
        shortcuts: for each of our tasks, how its messages bypass Celery's consumer.
        capacity: how many more messages there is room for.
        screen: returns the message of an item of a queue, or raises WireError.
        receipt: returns the function that acknowledges a taken message when its attempt has ended.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._taken = self._done = 0
        self._allowed = int(self.limit)
        self._counting, self._aside = threading.Lock(), set[EngineRequest]()
        self._host: Host
        self._serves = self._hands_back = False
        self.shortcuts: dict[str, Shortcut] = {}
        self.screen: Callable[[bytes, str], Mapping[str, Any]]
        self.receipt: Callable[[Any], Callable[[], object]] = acknowledge_at_once
        self.capacity, self._events = Capacity(self), PoolEvents()

    @property
    def free(self) -> int:
        """Return how many more messages this process can take now."""
        return min(self.most, self._allowed) - self.running + len(self._aside)

    @property
    def most(self) -> int:
        """Return how many attempts may run at once at most."""
        return int(self.limit)

    @property
    def running(self) -> int:
        return self._taken - self._done

    def allow(self, attempts: int) -> None:
        """Run at most that many at once from now on; running ones continue."""
        self._allowed = attempts
        self.capacity.wake()

    def serve(self, host: Host, engine: Engine) -> None:
        """Let this process's host carry out messages, on its engine's loop, from now on."""
        self._host, self._engine, self._serves = host, engine, True
        self._chords = ChordCounter(self.app, host.effects, host.execute)
        if isinstance(host.effects, LoopEffects):
            host.effects.ahead.taker = self

    def can_skip_tracer(self, task: Any) -> bool:
        """Return whether Celery's tracer can be left out unnoticed: `PoolEvents` sends its events."""
        return (
            self._serves
            and not any(signal.receivers for signal in _TRACER_SIGNALS)
            and not is_tracer_replaced()
            and next(kind for kind in type(task).__mro__ if "__call__" in vars(kind)) is Task
        )

    def take_unread(self, message: Mapping[str, Any], _queue: str) -> bool:
        """Take a message as it came from Redis, and return whether it was taken."""
        shortcut = self.shortcuts.get((message.get("headers") or {}).get("task", ""))
        return shortcut is not None and shortcut.take(message)

    def wants(self, kind: AttemptKind, queue: str) -> bool:
        shortcut = self.shortcuts.get(TASKS[kind])
        return shortcut is not None and queue in self.capacity.queues and self.free > 0 and shortcut.is_open()

    def spare(self, kind: AttemptKind, queue: str) -> int:
        return max(0, self.free - MOST_AT_ONCE) if self.wants(kind, queue) else 0

    def part_of(self, envelope: Envelope) -> Mapping[str, Any]:
        """Return what makes an attempt's message a part of its chord."""
        return self._host.part_of(envelope)

    def take_own(self, envelope: Envelope) -> None:
        self.shortcuts[TASKS[envelope.kind]].take_own(envelope)

    def take_item(self, item: bytes, queue: str) -> bool:
        try:
            return self.take_unread(self.screen(item, queue), queue)
        except WireError:  # the consumer refuses it
            return False

    def take(self, request: EngineRequest, refusals: Refusals) -> None:
        """Pass a message to the engine. Safe to call from any thread."""
        self._accept(request)
        self._engine.inbox.put(partial(self._begin, request, refusals))

    def begin_own(self, request: EngineRequest, envelope: Envelope, refusals: Refusals) -> None:
        """Begin an attempt whose message this process has written. Called on the engine's loop."""
        self._accept(request)
        self._engine.begin(self._carry_out(request, self._host.perform(envelope), refusals))

    def on_apply(self, *args: Any, **kwargs: Any) -> Any:
        self._count()
        applied = super().on_apply(*args, **kwargs)
        applied.f.add_done_callback(lambda _: self._free())
        return applied

    def on_start(self) -> None:
        """Let free slots take messages."""
        self.app.amqp.Connection = connection_for(self.capacity)

    def on_stop(self) -> None:
        """Wait for what runs, as Celery's own pools do."""
        while self._taken > self._done:
            time.sleep(0.02)
        super().on_stop()

    def hand_back(self) -> None:
        """Begin to hand back what runs. Called from a signal handler."""
        if not self._hands_back:
            self._hands_back = True
            self._host.announce_stop()
            after(0.0, self._host.hand_back)

    def _accept(self, request: EngineRequest) -> None:
        self._count()
        state.task_reserved(request)
        state.task_accepted(request)
        self._events.begun(request)

    def _begin(self, request: EngineRequest, refusals: Refusals) -> None:
        work = self._host.carry_out(request.type, request.wire, task_id=request.id)
        self._engine.begin(self._carry_out(request, work, refusals))

    async def _carry_out(
        self, request: EngineRequest, work: Coroutine[Any, Any, DeliveryResult], refusals: Refusals
    ) -> None:
        effects, delivered = self._host.effects, None
        wait_for_locks(partial(self._step_aside, request))
        try:
            delivered = await work
            if delivered.is_part and request.part is not None:
                await self._chords.count(request.part)
        except WireError as refused:
            await effects.call(refusals.record, refused, request.id.encode(), queue=request.queue)
        except Exception:
            logger.exception("message %s failed", request.id)
        finally:
            state.task_ready(request)
            self._events.ended(request, delivered)
            request.is_done = True
            request.acknowledge()
            self._aside.discard(request)
            self._free()

    def _step_aside(self, request: EngineRequest) -> None:
        """Free the slot of a message whose statements wait for a lock. Safe to call from any thread, any number of times."""
        if not request.is_done and len(self._aside) < self.most:
            self._aside.add(request)
            self.capacity.wake()

    def _count(self) -> None:
        with self._counting:
            self._taken += 1

    def _free(self) -> None:
        with self._counting:
            self._done += 1
        self.capacity.wake()

    @property
    def info(self) -> dict[str, Any]:
        """Return what `celery inspect stats` shows of the pool."""
        return {**super().info, "attempts": self._taken - self._done}
