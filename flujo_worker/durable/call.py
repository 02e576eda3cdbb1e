"""A call that is a unit: what is asked, and what a repetition of it means."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flujo_client.contract.outcome import NO_USAGE, Usage
from flujo_worker.domain.budget import Amount
from flujo_worker.domain.units import Effect, Unit


@dataclass(frozen=True, slots=True)
class UnitCall:
    """A call that is a unit.

    Attributes:
        operation: its name, which lasts over deploys.
        asked: what is asked, as bytes.
        effect: what it does outside; None: it may be repeated.
        is_paid: whether it is a request, and a repetition would be paid for: it is announced before it is begun.
        parts: what a request asks in parts, each with a short digest.
        usage: what an answer has cost, which it is called with as it came.
        in_doubt: asks a person about one that was begun before and has no answer, and that has this id; returns the answer that it had, or None
            to make it again. None: nobody needs to be asked.
        model: which a request asks, by its provider and name.
        expected: estimates what an answer costs: under limits that is set aside before it is asked for.
        begin: waits until it may be asked, before it is announced.
    """

    operation: str
    asked: bytes
    effect: Effect | None = None
    is_paid: bool = False
    parts: Sequence[str] = ()
    usage: Callable[[Any], Usage] = lambda _: NO_USAGE
    in_doubt: Callable[[str], Awaitable[Any]] | None = None
    model: str | None = None
    expected: Callable[[], Amount] = Amount
    begin: Callable[[Unit], Awaitable[None]] | None = None
