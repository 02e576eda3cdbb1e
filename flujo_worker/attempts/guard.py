"""An attempt and the circuit breaker of its model: asked once, before anybody is called; told how all calls went (M-463, C-44).

Must not decide when a breaker turns. In: an attempt's envelope and its agent, then its calls; out: whether it may begin, or how long
it is to wait. Breakers of other models that the attempt calls, of a plugin's redirect or a precheck's agents, are told and not asked.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from flujo_client.contract.outcome import Event
from flujo_worker.agents.factory import service_of
from flujo_worker.domain.breaker import BreakerReport, Counts, Permit, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flujo_client.contract.envelope import Envelope
    from flujo_worker.guards.breakers import Breakers, Turned
    from flujo_worker.ports import Ledger
    from flujo_worker.runtime.work import ModelCall

logger = logging.getLogger(__name__)


class Guard:
    """Guards one attempt.

    Args:
        breakers: shared by all workers; None where the project has none.
        ledger: where waits and a breaker's turns are written down.
        envelope: the attempt's.
        agent: its live agent.
    """

    def __init__(self, breakers: Breakers | None, ledger: Ledger, envelope: Envelope, agent: Any) -> None:
        self._breakers, self._ledger, self._envelope = breakers, ledger, envelope
        self._model = None if breakers is None or agent is None else service_of(agent)
        self._permit = Permit()

    def holds_back(self, fence: int) -> bool:
        """Ask; if the breaker is open, give the attempt back, to be published again when it may be tried."""
        if self._breakers is None or self._model is None:
            return False
        self._permit, turned = self._breakers.ask(self._model)
        self._tell(self._model, turned)
        if self._permit.wait_s is None:
            return False
        key, step = self._envelope.key, self._envelope.step
        wait = spread(self._permit.wait_s, self._breakers.rules, f"{key} {fence}")
        data = {"step": step, "model": self._model, "delay_seconds": round(wait, 3)}
        self._ledger.defer(key, fence, wait, Event("flujo.breaker.waiting", data, "warning"))
        return True

    def report(self, calls: Sequence[ModelCall]) -> None:
        """Tell the breakers how the attempt's calls went; the one that let it through, that it called nobody, too."""
        if self._breakers is None:
            return
        by_model: dict[str, list[ModelCall]] = (
            {} if self._permit.turn is None or self._model is None else {self._model: []}
        )
        for call in calls:
            by_model.setdefault(call.model, []).append(call)
        for model, its_calls in by_model.items():
            turn = self._permit.turn if model == self._model else None
            self._tell(model, self._breakers.report(model, _report(its_calls, turn, self._breakers.rules.slow_s)))

    def _tell(self, model: str, turned: Turned | None) -> None:
        if turned is None:
            return
        logger.warning("circuit breaker of %s: %s, %s", model, turned.how, turned.figures)
        level = "warning" if turned.how == "opened" else "info"
        event = Event(f"flujo.breaker.{turned.how}", {"model": model, **turned.figures}, level)
        self._ledger.note(self._envelope.ticket.run, [event], key=self._envelope.key)


def _report(calls: Sequence[ModelCall], turn: int | None, slow_s: float) -> BreakerReport:
    slow = sum(call.seconds > slow_s for call in calls)
    counts = Counts(len(calls), sum(call.failed for call in calls), slow)
    return BreakerReport(counts, turn, max((call.asked_s for call in calls), default=0.0))
