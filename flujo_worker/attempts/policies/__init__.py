"""How each kind of work row is carried out: a table, so that a new kind needs no edit anywhere else (M-041, C-18)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_worker.attempts.policies.resume import perform_resume
from flujo_worker.attempts.policies.step import perform_step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from flujo_worker.runtime.work import Done, Work

POLICIES: dict[str, Callable[[Work], Awaitable[Done]]] = {"step": perform_step, "resume": perform_resume}
