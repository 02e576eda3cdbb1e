"""The answers of an output's judges: a plugin's outcome, a validator's result, and `@validator`, which makes one of a function.

It must not call a judge: a worker does. In: what a judge answered; out: plain data, or a TypeError that says what was expected.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from pydantic import BaseModel, Field, JsonValue


class ValidationResult(BaseModel):
    """A validator's verdict, as plain data."""

    is_valid: bool
    score: float = Field(default_factory=lambda known: float(known.get("is_valid") is True), allow_inf_nan=False)
    """The quality of the output; by default 1.0, or 0.0 if invalid."""
    diff: str | None = None
    """The changes that the output needs."""
    feedback: str | None = None
    """The reason."""
    validator_name: str | None = None
    """The name in the result; the validator's own when None."""
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    """Your own JSON."""
    cost_usd: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """The cost of model calls in the validator, in US dollars; added to the attempt's."""
    token_counts: int | None = Field(default=None, ge=0)
    """The tokens of such calls; added to the attempt's."""


class PluginOutcome(BaseModel):
    """A plugin's verdict."""

    success: bool
    feedback: str | None = None
    redirect_to: Any = None
    """An agent, or a reference to one, to call with the step's input instead. It gets `feedback` as `guidance`; the other fields are
    ignored."""
    new_solution: Any = None
    """Replaces the output."""
    cost_usd: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """The cost of model calls in the plugin, in US dollars; added to the attempt's."""
    token_counts: int | None = Field(default=None, ge=0)
    """The tokens of such calls; added to the attempt's."""


class FunctionValidator:
    """A validator made of a function by `@validator`.

    Attributes:
        name: the function's.
        validate: takes what the function takes, and gives a `ValidationResult`; awaited if the function is async.
    """

    def __init__(self, judge: Callable[..., Any]) -> None:
        self.name = str(getattr(judge, "__name__", type(judge).__name__))
        self.__flujo_target__ = judge

        @wraps(judge)
        def validate(*given: Any, **options: Any) -> Any:
            answer = judge(*given, **options)
            return self._awaited(answer) if inspect.isawaitable(answer) else self._named(answer)

        self.validate = validate

    async def _awaited(self, answer: Awaitable[Any]) -> ValidationResult:
        return self._named(await answer)

    def _named(self, answer: Any) -> ValidationResult:
        result = result_of(answer)
        return result if result.validator_name else result.model_copy(update={"validator_name": self.name})


def validator(judge: Callable[..., Any]) -> FunctionValidator:
    """Make a validator of a function that answers with a bool, or with (bool, feedback); sync or async.

    It gets the output; the context as a parameter named `context`, or as the second one; and `resources` by name.
    """
    return FunctionValidator(judge)


def result_of(answer: Any) -> ValidationResult:
    """Read a validator's answer: a result, a bool, or (bool, feedback). Raises TypeError: it is none of these."""
    match answer:
        case ValidationResult():
            return answer
        case bool():
            return ValidationResult(is_valid=answer)
        case bool(is_valid), feedback:
            return ValidationResult(is_valid=is_valid, feedback=None if feedback is None else str(feedback))
    message = f"a validator must return a ValidationResult, a bool or (bool, feedback), got {type(answer).__name__}"
    raise TypeError(message)
