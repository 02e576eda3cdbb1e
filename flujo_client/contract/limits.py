"""Limits: how many attempts may run at once under one name, and what runs may spend.

Must not know where spending is counted. In: limits and figures. Out: the tighter of limits, texts, UsageLimitExceededError.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
