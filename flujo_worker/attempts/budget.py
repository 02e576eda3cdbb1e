"""Compute the reservation of an attempt under limits, which it makes before any call.

It must not know where budgets are stored. In: an envelope, its code, settings and the day. Out: one reservation for each budget that the
attempt is under, each of the same estimate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from flujo_client.config.models import Cost
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.limits import UsageEstimate, money
from flujo_client.contract.processing import PrecheckSettings
from flujo_client.pipeline.step import Step
from flujo_worker.agents.estimate import AgentFacts, ExpectedCall, configured, estimated, facts_of
from flujo_worker.agents.factory import tools_of
from flujo_worker.changed_code.code_registry import LoadedPipeline
from flujo_worker.domain.budget import Amount, Learned, Reservation
from flujo_worker.observe.log import emit

logger = logging.getLogger(__name__)

_unpriced: set[str] = set()
"""The models without a price that this process has reported."""


@dataclass(frozen=True, slots=True)
class PossibleCall:
    """One call that an attempt may make: the agent's, one of its tools', or one of the precheck's, which has its own `max_tokens`."""

    name: str
    agent: AgentFacts
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class StepCalls:
    """The calls that an attempt at a step may make, the agent's first."""

    calls: tuple[PossibleCall, ...]
    expected_usd: float | None
    """What the step itself says of an attempt, in US dollars."""
    expected_tokens: int | None
    """The same in tokens."""
    max_tokens: int | None
    """The most output tokens of one request of the agent's, if the step says so."""

    @property
    def agent(self) -> AgentFacts:
        """Return the step's own agent."""
        return self.calls[0].agent

    @property
    def needs_prompt(self) -> bool:
        """Return whether what is expected depends on the prompt: a model is asked, and the step does not say what that costs."""
        is_known = self.expected_usd is not None and self.expected_tokens is not None
        return any(each.agent.models for each in self.calls[is_known:])

    def expected(
        self, prompt_bytes: int, cost: Cost, known: Learned | None, *, is_whole: bool = False
    ) -> list[ExpectedCall]:
        """Estimate each call: by the step, else by the project's estimate for its model, else by the model's price and the call's size.

        `known` is the spend of earlier attempts at the step, with auxiliary calls; `is_whole`: reserve just that, unless the step sets an
        estimate.
        """
        calls = [
            self._expected(each, prompt_bytes, cost, known if each is self.calls[0] else None) for each in self.calls
        ]
        if is_whole and known is not None:
            calls = [ExpectedCall(calls[0].name, UsageEstimate(cost_usd=known.cost_usd, tokens=known.tokens))]
        usual = calls[0].expected
        hinted = UsageEstimate(
            cost_usd=usual.cost_usd if self.expected_usd is None else self.expected_usd,
            tokens=usual.tokens if self.expected_tokens is None else self.expected_tokens,
        )
        unpriced = calls[0].unpriced if self.expected_usd is None else ()
        return [ExpectedCall(calls[0].name, hinted, unpriced), *calls[1:]]

    def _expected(self, call: PossibleCall, prompt_bytes: int, cost: Cost, known: Learned | None) -> ExpectedCall:
        own = configured(call.agent, cost)
        if own is not None:
            tokens = own.tokens if call.max_tokens is None else call.max_tokens
            return ExpectedCall(call.name, own.model_copy(update={"tokens": tokens}))
        max_tokens = self.max_tokens if call is self.calls[0] else call.max_tokens
        return estimated(call.agent, prompt_bytes, cost, max_tokens=max_tokens, known=known, name=call.name)


def calls_of(step: Step, precheck: PrecheckSettings | None, *, agent_of: Callable[[Any], Any]) -> StepCalls:
    """List the calls that an attempt may make, each agent that is the agent's tool once. `precheck` counts if AROS acts on it."""
    calls = [PossibleCall("agent", _facts(step.agent, agent_of)), *_tools(step.agent, agent_of)]
    if precheck is not None and precheck.enabled:
        requested = [("consensus", precheck.consensus_agent)] * precheck.consensus_samples
        for name, agent in (*requested, ("validator", precheck.validator_agent)):
            if agent is not None:
                calls.append(PossibleCall(name, _facts(agent, agent_of), precheck.max_tokens))
    config = step.config
    return StepCalls(tuple(calls), config.expected_cost_usd, config.expected_tokens, config.max_tokens)


def reservations(
    envelope: Envelope, entry: LoadedPipeline, path: str, calls: Sequence[ExpectedCall], day: date
) -> list[Reservation]:
    """Return what the attempt asks for, all its calls together; nothing where no limit is over it.

    `day` is today in UTC, for the tenant's budget.
    """
    limits: Mapping[str, Any] = envelope.ticket.limits or {}
    parts = [Amount(money(each.expected.cost_usd), each.expected.tokens) for each in calls]
    requested = sum(parts, Amount())
    return [_reservation(scope, each, requested) for scope, each in _scopes(limits, entry, path, day)]


def emit_reservations(calls: Sequence[ExpectedCall]) -> None:
    """Emit each call's share of the reservation, if there are calls other than the agent's.

    For a model without a price each process reports once that only tokens are reserved.
    """
    for each in calls if len(calls) > 1 else ():
        emit("flujo.budget.reserved", call=each.name, cost_usd=each.expected.cost_usd, tokens=each.expected.tokens)
    for each in calls:
        for model in each.unpriced:
            if model not in _unpriced:
                _unpriced.add(model)
                emit("flujo.budget.unpriced", "warning", model=model, tokens=each.expected.tokens)


def _facts(agent: Any, agent_of: Callable[[Any], Any]) -> AgentFacts:
    try:
        return facts_of(agent_of(agent))
    except Exception:  # noqa: BLE001 - an agent that cannot be found or made fails its attempt, which reports it
        return AgentFacts()


def _tools(agent: Any, agent_of: Callable[[Any], Any]) -> list[PossibleCall]:
    try:
        return [PossibleCall(each.name, _facts(each.agent, agent_of)) for each in tools_of(agent_of(agent))]
    except Exception:  # noqa: BLE001 - as above
        return []


def _scopes(
    limits: Mapping[str, Any], entry: LoadedPipeline, path: str, day: date
) -> Iterator[tuple[str, Mapping[str, float | None]]]:
    run = limits.get("run", "")
    if limits.get("limits"):
        yield f"run:{run}", limits["limits"]
    if limits.get("tenant_limits"):
        yield f"tenant:{limits['tenant']}:{day:%Y-%m-%d}", limits["tenant_limits"]
    parts = path.split("/")
    for end in range(1, len(parts) + 1, 2):  # a node, the key of a body, a node in it
        above = "/".join(parts[:end])
        own = entry.steps[above].usage_limits if len(above) > len(limits.get("task", "")) else None
        if own is not None and not own.is_nothing:
            yield f"step:{run}:{above}", own.model_dump()


def _reservation(scope: str, limits: Mapping[str, Any], requested: Amount) -> Reservation:
    usd, tokens = limits["total_cost_usd_limit"], limits["total_tokens_limit"]
    return Reservation(scope, requested, None if usd is None else money(usd), tokens)
