"""A model that attempts call: its circuit breaker and its slow-down, asked and told together. Pure: `now` is an argument."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from flujo_worker.domain import breaker as breaking
from flujo_worker.domain.breaker import Breaker, BreakerReport, Permit, Rules
from flujo_worker.domain.slowdown import Slowdown, count_refusals, request_start

if TYPE_CHECKING:
    from flujo_client.contract.model_guards import Guard


@dataclass(frozen=True, slots=True)
class CalledModel:
    """The state of one model.

    Attributes:
        breaker: shows whether its provider is out of order.
        slowdown: shows whether it accepts as many calls as are made.
        closed_at: the operator's request to close the breaker that was carried out last, in unix seconds.
        sped_up_at: the same of requests to end the slow-down.
    """

    breaker: Breaker = field(default_factory=Breaker)
    slowdown: Slowdown = field(default_factory=Slowdown)
    closed_at: float = 0.0
    sped_up_at: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelRules:
    """How a model is guarded now: `breaker` of None: by no breaker; the rest are an operator's last requests, as in `CalledModel`."""

    breaker: Rules | None = field(default_factory=Rules)
    closed_at: float = 0.0
    sped_up_at: float = 0.0


class ModelPermit(NamedTuple):
    """The answer to who asks: the breaker's turn to call under, or what it has to wait for, and how many seconds at least."""

    turn: int | None = None
    waits_for: Guard | None = None
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CallReport:
    """The results of calls: `calls` were answered or failed, and so many more `refused`, with the seconds that these asked to wait."""

    calls: BreakerReport
    refused: int = 0
    refused_asked_s: float | None = None


ModelTransition = Literal["opened", "half_open", "closed", "slowed"]


def request_call(
    model: CalledModel, rules: ModelRules, now: float, *, has_waited: bool = False
) -> tuple[CalledModel, ModelPermit]:
    """Ask to call the model. A probe of its breaker is taken only if the slow-down lets the call begin too."""
    breaker, permit = model.breaker, Permit()
    if rules.breaker is not None:
        breaker, permit = breaking.request_permit(breaker, rules.breaker, now)
    if permit.wait_s is not None:
        return replace(model, breaker=breaker), ModelPermit(None, "breaker", permit.wait_s)
    slowdown, wait_s = request_start(model.slowdown, now, has_waited=has_waited)
    if wait_s is not None:
        return replace(model, slowdown=slowdown), ModelPermit(None, "rate", wait_s)
    return replace(model, breaker=breaker, slowdown=slowdown), ModelPermit(permit.turn)


def report_calls(model: CalledModel, rules: ModelRules, now: float, report: CallReport) -> CalledModel:
    """Return the model after these calls."""
    breaker = model.breaker
    if rules.breaker is not None:
        breaker = breaking.report(breaker, rules.breaker, now, report.calls)
    made = report.calls.counts.calls + report.refused
    slowdown = count_refusals(model.slowdown, now, made, report.refused, report.refused_asked_s)
    return replace(model, breaker=breaker, slowdown=slowdown)


def obey(model: CalledModel, rules: ModelRules) -> CalledModel:
    """Carry out an operator's requests, each once."""
    if rules.closed_at > model.closed_at:
        is_closed = model.breaker.state == "closed"
        breaker = model.breaker if is_closed else Breaker(turn=model.breaker.turn + 1)
        model = replace(model, breaker=breaker, closed_at=rules.closed_at)
    if rules.sped_up_at > model.sped_up_at:
        model = replace(model, slowdown=Slowdown(), sped_up_at=rules.sped_up_at)
    return model


def transition(before: CalledModel, after: CalledModel) -> ModelTransition | None:
    """Return how a model's state has changed, if it has."""
    if before.breaker.state != after.breaker.state:
        return "opened" if after.breaker.state == "open" else after.breaker.state
    return "slowed" if after.slowdown.per_minute and after.slowdown.since != before.slowdown.since else None
