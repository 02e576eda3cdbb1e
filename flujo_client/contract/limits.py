"""Limits: how many attempts may run at once under one name, what runs may spend, the fleet's settings for models, and waits in words. Pure.

Must not know where spending is counted. In: limits and figures; rows of settings for circuit breakers and rate limits; a wait, as a trace has
it, with what it is `for`. Out: the tighter of limits, texts, UsageLimitExceededError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, field_validator

from flujo_client.contract.admission import OnFull
from flujo_client.errors import UsageLimitExceededError

if TYPE_CHECKING:
    from flujo_client.contract.results import PipelineResult


AttemptScope = Literal["global", "pipeline", "run", "provider"]

MOST_AT_ONCE = 1_000_000
LONGEST_NAME = 200
"""Characters of a limit's name once it is filled in."""


class Limit(BaseModel):
    """A limit on the attempts of steps with this limit that run at once, in all workers together.

    Args:
        name: the limit's name, or a template over the step's input, the context and `tenant`: `crm:{{ tenant }}` is a limit per tenant.
        at_once: how many attempts may run.
        scope: which attempts share the name: all (`global`), those of one pipeline, of one run, or of steps whose agents ask the
            same model provider.
        on_full: what happens to further attempts. `queue`: they wait in Postgres, without a worker, and begin in order. `drop`: they
            fail without a retry, with the code `LIMIT_REACHED`. `cancel_oldest`: the other run whose attempt asked first is cancelled,
            and they wait until it has ended.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Annotated[str, Field(min_length=1, max_length=10_000)]
    at_once: Annotated[int, Field(ge=1, le=MOST_AT_ONCE)]
    scope: AttemptScope = "global"
    on_full: OnFull = "queue"

    def __init__(self, name: str, at_once: int, *, scope: AttemptScope = "global", on_full: OnFull = "queue") -> None:
        super().__init__(name=name, at_once=at_once, scope=scope, on_full=on_full)


MOST_USD, MOST_TOKENS = 1e9, 10**15
Dollars = Annotated[float, Field(ge=0, le=MOST_USD, allow_inf_nan=False)]
Tokens = Annotated[int, Field(ge=0, le=MOST_TOKENS)]

LIMIT_NAMES = ("total_cost_usd_limit", "total_tokens_limit")


class _Amounts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        """Refuse texts and `true`, which are not amounts, though both could be converted to one."""
        if isinstance(value, (bool, str)):
            raise ValueError("must be a number")  # noqa: TRY004 - pydantic reads ValueError
        return value


class UsageLimits(_Amounts):
    """Limits of spending. None means unlimited."""

    total_cost_usd_limit: Dollars | None = None
    """US dollars."""
    total_tokens_limit: Tokens | None = None
    """Input and output tokens together."""

    @property
    def is_nothing(self) -> bool:
        """Return whether nothing is limited."""
        return self.total_cost_usd_limit is None and self.total_tokens_limit is None


class UsageEstimate(_Amounts):
    """The expected spend of one attempt, in US dollars and tokens."""

    cost_usd: Dollars = 0.0
    tokens: Tokens = 0


class UsageGovernor:
    """Check results against limits.

    Args:
        limits: what a run may spend.
    """

    def __init__(self, limits: UsageLimits) -> None:
        self.limits = limits

    def guard(self, result: PipelineResult) -> None:
        """Check totals that include the step just run.

        Raises:
            UsageLimitExceededError: more was spent than the limits allow; the result is on it.
        """
        cost, tokens = self.limits.total_cost_usd_limit, self.limits.total_tokens_limit
        if cost is not None and money(result.total_cost_usd) > money(cost):
            raise UsageLimitExceededError(cost_exceeded(money(cost), money(result.total_cost_usd)), result)
        if tokens is not None and result.total_tokens > tokens:
            raise UsageLimitExceededError(tokens_exceeded(tokens, result.total_tokens), result)


def tightest(*limits: UsageLimits | None) -> UsageLimits:
    """Combine limits: of each field the smallest that is set."""
    given = [each for each in limits if each is not None]
    found: dict[str, Any] = {}
    for name in LIMIT_NAMES:
        values = [value for each in given if (value := getattr(each, name)) is not None]
        found[name] = min(values, default=None)
    return UsageLimits(**found)


def money(dollars: float | Decimal) -> Decimal:
    """Return US dollars that add up exactly, to a millionth of a millionth."""
    return Decimal(str(dollars)).quantize(Decimal("1e-12"))


def dollars(amount: Decimal) -> str:
    """Write US dollars without trailing zeros."""
    return f"${amount.normalize():f}"


def cost_exceeded(limit: Decimal, actual: Decimal) -> str:
    """Return the message for an exceeded limit in US dollars."""
    return f"Cost limit of {dollars(limit)} exceeded. Current cost: {dollars(actual)}"


def tokens_exceeded(limit: int, actual: int) -> str:
    """Return the message for an exceeded limit in tokens."""
    return f"Token limit of {limit} exceeded. Current tokens: {actual}"


Guard = Literal["breaker", "rate"]
EVERY_MODEL: Final = "*"
WAKE_S: Final = 1.5
"""Seconds after an operator's change at which waiting attempts ask again: by then all workers know it."""


@dataclass(frozen=True, slots=True)
class GuardRow:
    """The settings of one guard for the models of a name or pattern."""

    guard: Guard
    """The kind of guard."""
    model: str
    """The model's name, or a pattern of names."""
    from_file: Mapping[str, Any] | None = None
    """The settings in the `flujo.toml` of the worker that started last; None if that file has none."""
    edits: Mapping[str, Any] | None = None
    """The changes that operators have made to those settings; None if there are none."""
    cleared_at: float = 0.0
    """When an operator last closed the breaker or ended the slow-down, in unix seconds; 0.0: never."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Read a row of Postgres, its settings as JSON."""
        read = {name: None if row[name] is None else orjson.loads(row[name]) for name in ("from_file", "edits")}
        return cls(**{**row, **read})

    @property
    def settings(self) -> Mapping[str, Any] | None:
        """Return the settings in force; None where the row sets nothing."""
        is_set = self.from_file is not None or self.edits is not None
        return {**(self.from_file or {}), **(self.edits or {})} if is_set else None


def waits_for(guard: Guard, model: str) -> str:
    """Return what an attempt's row says that it waits for."""
    return f"{guard} {model}"


_WORDS: Final = {
    "answer": "for an answer from a person",
    "breaker": "for its model's breaker",
    "rate": "for its model's rate limit",
    "retry": "to be tried again",
    "worker": "for a worker",
}


def waits_in_words(wait: Mapping[str, Any]) -> str:
    """Return what a wait is for, as it follows the word "waits"."""
    if wait["for"] == "limit":
        return f"for {wait['limit']} ({wait['in_use']} of {wait['at_once']} in use)"
    model = f" ({wait['model']})" if wait.get("model") else ""
    return _WORDS[wait["for"]] + model
