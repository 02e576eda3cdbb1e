"""Which calls of a durable attempt a piece of code has made, and which were answered from record: events, breakers and limits are about new ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

from flujo_worker.concurrency.call_context import setting

Origin = Literal["asked", "replayed", "stored"]
"""asked: now. replayed: by a claim of this attempt that is over, and its events with it. stored: in an earlier attempt, with its events."""


class UnitsMet:
    """The units that were met inside a block; `of_requests`: of a call of an agent, the requests that are its own."""

    def __init__(self, *, is_call: bool = False) -> None:
        self.is_call, self.origins, self.of_requests = is_call, set[Origin](), set[Origin]()

    @property
    def are_stored(self) -> bool:
        """Return whether the events of all that happened inside are stored."""
        return self.origins == {"stored"}

    @property
    def has_asked_no_model(self) -> bool:
        """Return whether models have answered from record alone."""
        return bool(self.of_requests) and "asked" not in self.of_requests


_around: ContextVar[tuple[UnitsMet, ...]] = ContextVar("flujo_units_met", default=())


@contextmanager
def meeting_units(*, is_call: bool = False) -> Iterator[UnitsMet]:
    """Return what the code inside meets. `is_call`: it is one call of an agent."""
    met = UnitsMet(is_call=is_call)
    with setting(_around, (*_around.get(), met)):
        yield met


def meet(origin: Origin, *, is_request: bool) -> None:
    """Note a unit; `is_request`: it calls a model."""
    for met in _around.get():
        met.origins.add(origin)
    call = next((met for met in reversed(_around.get()) if met.is_call), None)
    if is_request and call is not None:
        call.of_requests.add(origin)
