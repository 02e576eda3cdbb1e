"""Isolate attempts whose processes died before, so that no other attempt is blamed for them (ADR 13).

A suspect runs in a separate process, next to the worker. If its worker died even so, or no process can be started, it waits until this
worker runs nothing else, and then runs there alone. In: envelopes that a claim rejected as suspects. Out: the disposition of the delivery.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, Protocol, TypeVar

from flujo_client.contract.envelope import Envelope
from flujo_client.frozen import frozen
from flujo_worker.ports import AttemptStore, PendingHookCall, Refusal, Room, Verdict

T = TypeVar("T")

logger = logging.getLogger(__name__)

ALONE_AFTER = 4
"""The number of losses in company after which a suspect runs alone: in a container all processes die together."""
NO_PLACE_S = 1.0, 3.0
"""The minimum and maximum seconds until a suspect without a free process is published again."""


Disposition = Literal["parked", "cancelled", "waiting", "crashed", "unreadable"]


@frozen
class DeliveryResult:
    """The result of a delivery; it crosses from a process that ran an attempt apart."""

    disposition: Verdict | Refusal | Disposition
    is_part: bool = False
    """Whether the delivery is a part of its chord."""
    in_company: int = 0
    """How often a suspect was lost while other attempts ran in its worker."""
    failure: FailureText | None = None
    is_signalled: bool = False
    """Whether the signals of a task that the attempt ran have reported it already."""


class FailureText(NamedTuple):
    """Why an attempt failed, for those who listen to Celery."""

    message: str
    traceback: str


class NoFreeSlot(Exception):
    """The maximum number of processes for suspects is running."""


class NoProcess(Exception):
    """No process could be started, or none that can import what this one has imported."""


class Processes(Protocol):
    """Starts processes for single attempts."""

    def perform(self, envelope: Envelope, room: Room) -> DeliveryResult:
        """Perform one attempt in a separate process.

        Raises:
            NoFreeSlot: too many are running; try again later.
            NoProcess: no process can be started here; the attempt was not touched.
        """

    def call_hooks(self, call: PendingHookCall) -> bool:
        """Call hooks in a separate process; False: it died. Raises NoFreeSlot, NoProcess: as for `perform`."""


class IsolationGate:
    """Admits many together, or one alone. One that waits to be alone goes before new ones."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._is_reserved = False

    def enter_if_free(self) -> bool:
        """Enter with others, unless one is alone or waits for that."""
        with self._changed:
            self._inside += not self._is_reserved
            return not self._is_reserved

    def enter(self) -> None:
        """Enter with others, as soon as none is alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_reserved)
            self._inside += 1

    def leave(self) -> None:
        with self._changed:
            self._inside -= 1
            if self._is_reserved:  # one that wants to be alone waits for this; each attempt passes here
                self._changed.notify_all()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Run the block inside with others."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Run the block inside alone: those inside leave first, those outside wait."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_reserved)
            self._is_reserved = True
            self._changed.wait_for(lambda: not self._inside)
        try:
            yield
        finally:
            with self._changed:
                self._is_reserved = False
                self._changed.notify_all()


class Isolation:
    """Performs suspects. Without `processes` every suspect has this process for itself."""

    def __init__(self, attempts: AttemptStore, processes: Processes | None) -> None:
        self._attempts, self._processes, self.gate = attempts, processes, IsolationGate()

    def perform(self, envelope: Envelope, in_company: int, here: Callable[[], DeliveryResult]) -> DeliveryResult:
        """Perform a suspect apart. `here` performs it in this process, as the only one."""
        try:
            return self.isolate(in_company, lambda processes, room: processes.perform(envelope, room), here)
        except NoFreeSlot:
            self._attempts.postpone(envelope.key, random.uniform(*NO_PLACE_S))  # noqa: S311 - jitter
            return DeliveryResult("waiting")

    def isolate(self, in_company: int, apart: Callable[[Processes, Room], T], here: Callable[[], T]) -> T:
        """Run lost work in a separate process (`apart`), or alone in this one (`here`). Raises NoFreeSlot: try again later."""
        try:
            if in_company < ALONE_AFTER:
                with self.gate.shared():
                    return self._apart(apart, "apart")
        except NoProcess as reason:
            logger.warning("a suspect runs alone in this worker: %s", reason)
        with self.gate.alone():
            try:
                return self._apart(apart, "alone")
            except (NoFreeSlot, NoProcess):
                return here()

    def _apart(self, apart: Callable[[Processes, Room], T], room: Room) -> T:
        if self._processes is None:
            raise NoProcess("this engine starts no processes")
        return apart(self._processes, room)
