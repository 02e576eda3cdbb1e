"""Compute the cost of a model call: by the project's prices, else the library's, else nothing, or an error if costs are strict.

Prices are those of the running attempt's settings. If costs are strict, a model without a price is rejected before it is called; one whose name is
only known from its answer, after that.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from flujo_client.config.models import Cost, ModelPrice
from flujo_client.contract.limits import MOST_TOKENS, MOST_USD
from flujo_client.contract.outcome import Usage
from flujo_client.contract.verdict import PluginOutcome, ValidationResult
from flujo_client.errors import PricingNotConfiguredError
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.agents.previews import emit_usage
from flujo_worker.runtime.attempt_run import AttemptRun, charge, current_settings

if TYPE_CHECKING:
    from pydantic_ai.usage import RunUsage

logger = logging.getLogger(__name__)

FREE = ("function", "test", "local")
"""The library's name for models that are functions, and our own prefix: they are free."""

_reported: set[str] = set()


class AskedModel(NamedTuple):
    """A model that an agent may ask; the provider is empty where the agent does not name it."""

    provider: str
    name: str
    url: str | None = None

    def __str__(self) -> str:
        return f"{self.provider}.{self.name}" if self.provider else self.name


def require_price(model: Any) -> None:
    """Raise PricingNotConfiguredError if costs are strict and a model, or `"provider:name"`, has no price."""
    cost = current_settings().cost
    for asked in models_of(model) if cost.strict else ():
        if price_of(asked, 0, 0, cost) is None:
            raise PricingNotConfiguredError(asked.provider, asked.name)


def price_of(asked: AskedModel, input_tokens: int, output_tokens: int, cost: Cost) -> float | None:
    """Return the cost of these tokens in US dollars; None if neither the project nor the library knows the model's price."""
    if asked.provider in FREE:
        return 0.0
    price = _price(cost, asked.provider, asked.name)
    if price is not None:
        return _dollars(price, input_tokens, output_tokens)
    return _listed_price(asked, input_tokens, output_tokens)


def declared(output: Any, counted: Usage) -> Usage:
    """Return the usage that an output declares by its attributes `cost_usd` and `token_counts`, if they are sensible numbers; else what was counted."""
    given: dict[str, float | Decimal] = {}
    for name, most in (("cost_usd", MOST_USD), ("token_counts", MOST_TOKENS)):
        try:
            value: Any = getattr(output, name, None)
        except Exception:  # noqa: BLE001, S112 - a property of the user's that raises says nothing
            continue
        is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
        if is_number and math.isfinite(value) and 0 <= value <= most:
            given[name] = value
    cost, tokens = given.get("cost_usd"), given.get("token_counts")
    if tokens is not None and int(tokens) != counted.input_tokens + counted.output_tokens:
        counted = replace(counted, input_tokens=0, output_tokens=int(tokens))
    return counted if cost is None else replace(counted, cost_usd=float(cost))


def usage_of(spent: RunUsage, response: Any = None, asked: str | None = None) -> Usage:
    """Return the usage of a run by the library's counts; `asked` is the model as the agent names it, for providers may answer with a dated name.

    Raises PricingNotConfiguredError: costs are strict and the model of the last response has no price; the attempt is charged with the usage.
    """
    counted = Usage(spent.input_tokens, spent.output_tokens, spent.requests, float(spent.cost or 0))
    provider, model = getattr(response, "provider_name", None), getattr(response, "model_name", None)
    price = _price(current_settings().cost, provider, model, asked)
    if price is not None:
        return replace(counted, cost_usd=_dollars(price, spent.input_tokens, spent.output_tokens))
    if spent.cost is None and model is not None and provider not in (None, *FREE):
        _unpriced(counted, provider, model)
    return counted


def models_of(model: Any) -> list[AskedModel]:
    """List the models that a model asks, more than one if it falls back to others; none where it does not say."""
    if isinstance(model, str):
        before, _, named = model.rpartition(":")
        return [AskedModel(before.rpartition("/")[2], named)] if before else []
    if isinstance(others := getattr(model, "models", None), list | tuple):
        return [each for other in others for each in models_of(other)]
    provider, name = getattr(model, "system", None), getattr(model, "model_name", None)
    return [AskedModel(str(provider), str(name), getattr(model, "base_url", None))] if provider and name else []


@lru_cache(maxsize=1024)
def _listed_price(asked: AskedModel, input_tokens: int, output_tokens: int) -> float | None:
    """Return the price from the library's list; finding a model there takes 0.1 ms."""
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.usage import RequestUsage

    provider, name, url = asked
    usage = RequestUsage(input_tokens=input_tokens, output_tokens=output_tokens)
    answer = ModelResponse(parts=[], usage=usage, model_name=name, provider_name=provider or None, provider_url=url)
    try:
        return float(answer.cost().total_price)
    except LookupError:
        return None


def _dollars(price: ModelPrice, input_tokens: int, output_tokens: int) -> float:
    return (input_tokens * price.prompt_tokens_per_1k + output_tokens * price.completion_tokens_per_1k) / 1000


def _price(cost: Cost, provider: str | None, *models: str | None) -> ModelPrice | None:
    providers = [provider, *(name.partition(":")[0] for name in models if name and ":" in name)]
    table = next((found for each in providers if (found := cost.providers.get(each or ""))), {})
    names = [name.rpartition(":")[2] for name in models if name]
    return next((table[name] for name in names if name in table), None)


def _unpriced(counted: Usage, provider: str | None, model: str) -> None:
    if current_settings().cost.strict:
        error = PricingNotConfiguredError(provider, model)
        charge(error, counted)
        raise error
    if model not in _reported:
        _reported.add(model)
        logger.critical("model %s.%s has no price: its calls count as 0", provider, model)


async def record_usage(call: Awaitable[AgentAnswer], run: AttemptRun, *, by: str | None = None) -> Any:
    """Return what a processor, plugin or validator gives, and add what its call spent, however it ends.

    A judge's verdict may say what it cost; a processor's output may not, because it passes on what others made. `by` says whose call it is,
    for the event that says what it spent; None where others report that.
    """
    try:
        answer = await call
    except Exception as error:
        _book(run, run.take_charge(error), by)
        raise
    output, usage = answer.output, answer.usage
    _book(run, declared(output, usage) if isinstance(output, PluginOutcome | ValidationResult) else usage, by)
    return output


def _book(run: AttemptRun, usage: Usage, by: str | None) -> None:
    run.spent += usage
    if by is not None:
        emit_usage(usage, by)
