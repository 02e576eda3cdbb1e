"""Estimate what an attempt's calls of agents cost before they are made, and compute its reservation under limits.

It must not call an agent or a model, nor know where budgets are stored. A token is assumed to be three bytes, fewer than in most texts, because an
excess reservation is returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from fnmatch import fnmatchcase
from typing import Any, Final

from flujo_client.config.models import Cost
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.limits import UsageEstimate, money
from flujo_client.contract.processing import PrecheckSettings
from flujo_client.frozen import frozen
from flujo_client.pipeline.step import Step, StepConfig
from flujo_client.plan.identity import model_name
from flujo_worker.agents.factory import MODEL_OPTIONS, asker_of, library_agent, tools_of
from flujo_worker.agents.pricing import AskedModel, models_of, price_of
from flujo_worker.changed_code.code_registry import LoadedPipeline
from flujo_worker.domain.budget import BYTES_PER_TOKEN, Amount, Learned, Reservation
from flujo_worker.observe.log import emit

_MAX_TOKENS: Final = MODEL_OPTIONS[-1]
_unpriced: set[str] = set()
"""The models without a price that this process has reported."""


@frozen
class AgentFacts:
    """The facts about an agent before it is called."""

    model: str = ""
    """Its model as the agent names it; empty if it names none."""
    models: tuple[AskedModel, ...] = ()
    """The models that it may call, of which the most expensive counts."""
    instruction_bytes: int = 0
    """The length of its constant instructions."""
    max_tokens: int | None = None
    """The maximum number of output tokens of one request, if the agent sets it."""
    write_prompt: Callable[[Any, Any], str] | None = None
    """Writes the prompt that an agent with its own templates sends for an input and a context."""


@frozen
class ExpectedCall:
    """One call that an attempt may make, its estimated cost, and its models without a price."""

    name: str
    expected: UsageEstimate
    unpriced: tuple[str, ...] = ()


def facts_of(agent: Any, agent_of: Callable[[Any], Any] = lambda agent: agent) -> AgentFacts:
    """Collect an agent's properties. One that cannot be found or raises here fails its attempt, which reports the error."""
    try:
        agent = agent_of(agent)
        asker = asker_of(agent)
        library = library_agent(asker)
        name, model = model_name(library) or "", getattr(library, "model", None)
        return AgentFacts(
            model=name,
            models=tuple(models_of(model)) or ((AskedModel("", name),) if name else ()),
            instruction_bytes=sum(len(each.encode()) for each in _instructions(library)),
            max_tokens=_max_tokens(asker, library, model),
            write_prompt=getattr(agent, "__flujo_prompt__", None),
        )
    except Exception:  # noqa: BLE001 - what makes an agent or a model, and what it says of itself, is user code
        return AgentFacts()


def estimated(
    facts: AgentFacts,
    prompt_bytes: int,
    cost: Cost,
    *,
    max_tokens: int | None,
    known: Learned | None,
    name: str = "agent",
) -> ExpectedCall:
    """Estimate a call from the model's price, its prompt and its maximum output.

    `known` is the spend of earlier attempts at the step: an agent with tools makes several requests, each with the whole prompt.
    `max_tokens` is the most output tokens of one request, if the step sets it.
    """
    if not facts.models:
        return ExpectedCall(name, UsageEstimate(tokens=max_tokens or 0))
    requests = 1 if known is None else max(1, known.requests)
    read = requests * math.ceil((facts.instruction_bytes + prompt_bytes) / BYTES_PER_TOKEN)
    most = max_tokens or facts.max_tokens
    usual = cost.default_output_tokens if known is None else known.output_tokens
    written = usual if most is None else requests * most
    prices = {each: price_of(each, read, written, cost) for each in facts.models}
    expected = UsageEstimate(cost_usd=max(price or 0.0 for price in prices.values()), tokens=read + written)
    return ExpectedCall(name, expected, tuple(str(each) for each, price in prices.items() if price is None))


def _instructions(agent: Any) -> list[str]:
    """Return the constant texts among a library agent's instructions, which it shows nowhere in public."""
    found = [*(getattr(agent, "_system_prompts", None) or ()), *(getattr(agent, "_instructions", None) or ())]
    texts = [getattr(each, "instruction", each) for each in found]
    return [each for each in texts if isinstance(each, str)]


def _max_tokens(asker: Any, agent: Any, model: Any) -> int | None:
    owners = (asker, "model_options"), (agent, "model_settings"), (model, "settings")
    own = (getattr(owner, name, None) for owner, name in owners)
    given = (each.get(_MAX_TOKENS) for each in own if isinstance(each, dict))
    return next((each for each in given if isinstance(each, int) and each > 0), None)


@frozen
class PossibleCall:
    """One call that an attempt may make: the agent's, one of its tools', or one of the precheck's, which has its own `max_tokens`."""

    name: str
    agent: AgentFacts
    max_tokens: int | None = None


@frozen
class StepCalls:
    """The calls that an attempt at a step may make, the agent's first."""

    calls: tuple[PossibleCall, ...]
    config: StepConfig
    """The step's settings. In a durable step each request has its own reservation; the claim makes that of the first."""

    @property
    def agent(self) -> AgentFacts:
        """Return the step's own agent."""
        return self.calls[0].agent

    @property
    def needs_prompt(self) -> bool:
        """Return whether the estimate depends on the prompt: a model is called, and the step does not set its cost."""
        is_known = self.config.expected_cost_usd is not None and self.config.expected_tokens is not None
        return any(each.agent.models for each in self.calls[is_known:])

    def expected(
        self, prompt_bytes: int, cost: Cost, known: Learned | None, *, is_whole: bool = False
    ) -> list[ExpectedCall]:
        """Estimate each call: by the step, else by the project's estimate for its model, else by the model's price and the call's size.

        `known` is the spend of earlier attempts at the step, with auxiliary calls; `is_whole`: reserve just that, unless the step sets an
        estimate.
        """
        own, (first, *others) = self.config, self.calls
        calls = [self._expected(first, prompt_bytes, cost, None if own.durable else known)]
        calls += [self._expected(each, prompt_bytes, cost, None) for each in others]
        if is_whole and known is not None:
            calls = [ExpectedCall(calls[0].name, UsageEstimate(cost_usd=known.cost_usd, tokens=known.tokens))]
        usual = calls[0].expected
        usd = usual.cost_usd if own.expected_cost_usd is None else own.expected_cost_usd
        tokens = usual.tokens if own.expected_tokens is None else own.expected_tokens
        hinted = UsageEstimate(cost_usd=usd, tokens=tokens)
        unpriced = calls[0].unpriced if own.expected_cost_usd is None else ()
        return [ExpectedCall(calls[0].name, hinted, unpriced), *calls[1:]]

    def _expected(self, call: PossibleCall, prompt_bytes: int, cost: Cost, known: Learned | None) -> ExpectedCall:
        model, estimators = call.agent.model, cost.estimators
        by_pattern = (each for pattern, each in estimators.items() if fnmatchcase(model, pattern))
        own = estimators.get(model) or next(by_pattern, None)
        if own is not None:
            tokens = own.tokens if call.max_tokens is None else call.max_tokens
            return ExpectedCall(call.name, own.model_copy(update={"tokens": tokens}))
        max_tokens = self.config.max_tokens if call is self.calls[0] else call.max_tokens
        return estimated(call.agent, prompt_bytes, cost, max_tokens=max_tokens, known=known, name=call.name)


def calls_of(step: Step, precheck: PrecheckSettings | None, *, agent_of: Callable[[Any], Any]) -> StepCalls:
    """List the calls that an attempt may make: of its agent, once of each agent that is its tool, and of a `precheck`."""
    calls = [PossibleCall("agent", facts_of(step.agent, agent_of)), *_tools(step.agent, agent_of)]
    if precheck is not None and precheck.enabled:
        requested = [("consensus", precheck.consensus_agent)] * precheck.consensus_samples
        for name, agent in (*requested, ("validator", precheck.validator_agent)):
            if agent is not None:
                calls.append(PossibleCall(name, facts_of(agent, agent_of), precheck.max_tokens))
    return StepCalls(tuple(calls), step.config)


def reservations(
    envelope: Envelope, entry: LoadedPipeline, path: str, calls: Sequence[ExpectedCall], day: date
) -> list[Reservation]:
    """Return the reservations for all calls of an attempt; none without limits. `day` is today in UTC, for the tenant's budget."""
    limits: Mapping[str, Any] = envelope.ticket.limits or {}
    parts = [Amount(money(each.expected.cost_usd), each.expected.tokens) for each in calls]
    requested, found = sum(parts, Amount()), list[Reservation]()
    for scope, each in _scopes(limits, entry, path, day):
        usd, tokens = each["total_cost_usd_limit"], each["total_tokens_limit"]
        found.append(Reservation(scope, requested, None if usd is None else money(usd), tokens))
    return found


def emit_reservations(calls: Sequence[ExpectedCall]) -> None:
    """Emit the share of each call, if there are several. Warn once in each process that a model without a price reserves only tokens."""
    for each in calls if len(calls) > 1 else ():
        emit("flujo.budget.reserved", call=each.name, cost_usd=each.expected.cost_usd, tokens=each.expected.tokens)
    for each in calls:
        for model in each.unpriced:
            if model not in _unpriced:
                _unpriced.add(model)
                emit("flujo.budget.unpriced", "warning", model=model, tokens=each.expected.tokens)


def _tools(agent: Any, agent_of: Callable[[Any], Any]) -> list[PossibleCall]:
    try:
        return [PossibleCall(each.name, facts_of(each.agent, agent_of)) for each in tools_of(agent_of(agent))]
    except Exception:  # noqa: BLE001 - likewise
        return []


def _scopes(
    limits: Mapping[str, Any], entry: LoadedPipeline, path: str, day: date
) -> Iterator[tuple[str, Mapping[str, Any]]]:
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
