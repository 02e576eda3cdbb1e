"""Estimate the cost of one attempt's calls of an agent before they are made.

It must not call an agent or a model. In: an agent; then the size of its prompt, and the spend of earlier attempts. Out: US dollars and
tokens. A token is assumed to be three bytes, fewer than in most texts, because an excess reservation is returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from flujo_client.config.models import Cost
from flujo_client.contract.limits import UsageEstimate
from flujo_worker.agents.factory import MODEL_OPTIONS, asker_of, library_agent, model_of
from flujo_worker.agents.pricing import AskedModel, models_of, price_of
from flujo_worker.domain.budget import BYTES_PER_TOKEN, Learned

_MAX_TOKENS: Final = MODEL_OPTIONS[-1]


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """The facts about an agent before it is called."""

    model: str = ""
    """Its model as the agent names it; empty if it names none."""
    models: tuple[AskedModel, ...] = ()
    """The models that it may call, of which the most expensive counts."""
    instruction_bytes: int = 0
    """The length of its constant instructions."""
    max_tokens: int | None = None
    """The maximum of output tokens of one request, if the agent sets it."""
    write_prompt: Callable[[Any, Any], str] | None = None
    """Writes the prompt that an agent with its own templates sends for an input and a context."""


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """One call that an attempt may make, its estimated cost, and its models without a price."""

    name: str
    expected: UsageEstimate
    unpriced: tuple[str, ...] = ()


def facts_of(agent: Any) -> AgentFacts:
    """Collect an agent's properties. An agent that raises here fails again when it is called; the error is reported there."""
    try:
        asker = asker_of(agent)
        library = library_agent(asker)
        name, model = model_of(asker) or "", getattr(library, "model", None)
        return AgentFacts(
            model=name,
            models=tuple(models_of(model)) or ((AskedModel("", name),) if name else ()),
            instruction_bytes=sum(len(each.encode()) for each in _instructions(library)),
            max_tokens=_max_tokens(asker, library, model),
            write_prompt=getattr(agent, "__flujo_prompt__", None),
        )
    except Exception:  # noqa: BLE001 - what makes a model, and what it says of itself, is user code
        return AgentFacts()


def configured(facts: AgentFacts, cost: Cost) -> UsageEstimate | None:
    """Return what the project expects of an agent's model, if it says so."""
    by_pattern = (each for pattern, each in cost.estimators.items() if fnmatchcase(facts.model, pattern))
    return cost.estimators.get(facts.model) or next(by_pattern, None)


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
    return ExpectedCall(
        name,
        UsageEstimate(cost_usd=max(price or 0.0 for price in prices.values()), tokens=read + written),
        tuple(str(each) for each, price in prices.items() if price is None),
    )


def _instructions(agent: Any) -> list[str]:
    """Return the constant texts among a library agent's instructions, which it shows nowhere in public."""
    found = [*(getattr(agent, "_system_prompts", None) or ()), *(getattr(agent, "_instructions", None) or ())]
    texts = [getattr(each, "instruction", each) for each in found]
    return [each for each in texts if isinstance(each, str)]


def _max_tokens(asker: Any, agent: Any, model: Any) -> int | None:
    own = (
        getattr(asker, "model_options", None),
        getattr(agent, "model_settings", None),
        getattr(model, "settings", None),
    )
    given = (each.get(_MAX_TOKENS) for each in own if isinstance(each, dict))
    return next((each for each in given if isinstance(each, int) and each > 0), None)
