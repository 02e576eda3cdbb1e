"""What a model call cost: the project's prices, else the library's, else nothing, or a refusal where costs are strict.

Must not call a model. In: what the library counted, and who answered. Out: a `Usage`. Prices are bound for an attempt by `priced_by`,
because agents are called from many places in it.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from flujo_client.contract.outcome import Usage
from flujo_client.errors import PricingNotConfiguredError
from flujo_client.sections import Cost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic_ai.usage import RunUsage

    from flujo_client.sections import ModelPrice

logger = logging.getLogger(__name__)

FREE = ("function", "test")
"""What the library calls models that are functions of ours: nobody bills them."""

_cost: ContextVar[Cost] = ContextVar("cost", default=Cost())  # noqa: B039 - frozen
_told: set[str] = set()


@contextmanager
def priced_by(cost: Cost) -> Iterator[None]:
    """Price every call inside by the project's settings."""
    token = _cost.set(cost)
    try:
        yield
    finally:
        _cost.reset(token)


def usage_of(spent: RunUsage, response: Any = None, asked: str | None = None) -> Usage:
    """Say what a run spent.

    Args:
        spent: what the library counted.
        response: the model's last response; None if there is none, and then no price is demanded.
        asked: the model as the agent names it; providers may answer with a dated name.

    Raises:
        PricingNotConfiguredError: costs are strict and the model has no price; the usage is on it, as `flujo_usage`.
    """
    counted = Usage(spent.input_tokens, spent.output_tokens, spent.requests, float(spent.cost or 0))
    provider, model = getattr(response, "provider_name", None), getattr(response, "model_name", None)
    price = _price(provider, model, asked)
    if price is not None:
        usd = spent.input_tokens * price.prompt_tokens_per_1k + spent.output_tokens * price.completion_tokens_per_1k
        return Usage(counted.input_tokens, counted.output_tokens, counted.requests, usd / 1000)
    if spent.cost is None and model is not None and provider not in (None, *FREE):
        _unpriced(counted, provider, model)
    return counted


def _price(provider: str | None, *models: str | None) -> ModelPrice | None:
    providers = [provider, *(name.partition(":")[0] for name in models if name and ":" in name)]
    table = next((found for each in providers if (found := _cost.get().providers.get(each or ""))), {})
    names = [name.rpartition(":")[2] for name in models if name]
    return next((table[name] for name in names if name in table), None)


def _unpriced(counted: Usage, provider: str | None, model: str) -> None:
    if _cost.get().strict:
        error = PricingNotConfiguredError(provider, model)
        error.flujo_usage = counted  # type: ignore[attr-defined]
        raise error
    if model not in _told:
        _told.add(model)
        logger.critical("model %s.%s has no price: what it costs counts as 0", provider, model)
