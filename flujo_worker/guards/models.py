"""The models that attempts call: their circuit breakers and slow-downs, as attempts query and update them. `domain/called_model.py` decides."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from flujo_client.config.model_guards import FleetGuards
from flujo_client.config.models import BreakerSettings
from flujo_client.contract.outcome import Event
from flujo_worker.domain.breaker import Rules
from flujo_worker.domain.called_model import (
    CalledModel,
    CallReport,
    ModelPermit,
    ModelRules,
    ModelTransition,
    obey,
    report_calls,
    request_call,
    transition,
)
from flujo_worker.guards.cells import Cells, answered_in_order
from flujo_worker.guards.live import LiveGuards


class ModelRequest(NamedTuple):
    """Asks to call a model, or reports how calls of it went. `has_waited`: it was sent away before."""

    model: str
    report: CallReport | None = None
    has_waited: bool = False


class ModelAnswer(NamedTuple):
    """Whether the model may be called, where that was asked; and how this request has changed its state."""

    permit: ModelPermit = ModelPermit()
    event: Event | None = None


class CalledModels:
    """The shared state of all models."""

    def __init__(self, cells: Cells[CalledModel], live: LiveGuards) -> None:
        self._cells, self._live = cells, live

    def answer(self, requests: Sequence[ModelRequest]) -> list[ModelAnswer]:
        """Answer requests as if each came after the one before it. All that name one model change its state at once."""
        guards = self._live.current()
        rules = {model: rules_of(guards, model) for model in {each.model for each in requests}}

        def answer(state: CalledModel, now: float, request: ModelRequest) -> tuple[CalledModel, ModelAnswer]:
            return _answer(state, rules[request.model], now, request)

        return answered_in_order(self._cells, requests, lambda each: each.model, answer, lambda _: ModelAnswer())

    def settings(self, model: str) -> BreakerSettings:
        """Return the known settings of a model's breaker, without reading them."""
        return self._live.known.breaker(model)


def rules_of(guards: FleetGuards, model: str) -> ModelRules:
    """Return how a model is guarded now."""
    breaker = guards.breaker(model)
    rules = _rules(breaker) if breaker.enabled else None
    return ModelRules(rules, guards.cleared_at("breaker", model), guards.cleared_at("rate", model))


@lru_cache(maxsize=256)
def _rules(settings: BreakerSettings) -> Rules:
    return Rules(**settings.model_dump(exclude={"enabled"}))


def _answer(
    before: CalledModel, rules: ModelRules, now: float, request: ModelRequest
) -> tuple[CalledModel, ModelAnswer]:
    model, permit = obey(before, rules), ModelPermit()
    if request.report is None:
        after, permit = request_call(model, rules, now, has_waited=request.has_waited)
    else:
        after = report_calls(model, rules, now, request.report)
    how = transition(before, after)
    event = None if how is None else _event(how, before, after, rules, now, request)
    return after, ModelAnswer(permit, event)


def _event(
    how: ModelTransition, before: CalledModel, after: CalledModel, rules: ModelRules, now: float, request: ModelRequest
) -> Event:
    """Describe a change of state, with the figures that show why."""
    figures: dict[str, Any] = {}
    report = request.report
    if how == "slowed":
        figures = {"requests_per_minute": after.slowdown.limit(now), "wait_s": round(after.slowdown.since - now, 3)}
        return Event("flujo.rate.slowed", {"model": request.model, **figures}, "warning")
    if how == "opened" and report is not None and rules.breaker is not None:
        counts = before.breaker.counts(rules.breaker, now) + report.calls.counts
        figures = {"calls": counts.calls, "failed": counts.failed, "slow": counts.slow}
        figures["recovery_s"] = round(after.breaker.until - now, 3)
    elif after.closed_at != before.closed_at:
        figures = {"by": "operator"}
    elif rules.breaker is not None:
        figures = {"probes": rules.breaker.half_open_calls}
    return Event(f"flujo.breaker.{how}", {"model": request.model, **figures}, "warning" if how == "opened" else "info")
