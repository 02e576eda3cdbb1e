"""Plugins and validators: judges of a well-formed output. What they refuse is terminal (C-01, M-288)."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from flujo_client.errors import PluginError, ValidationError
from flujo_worker.agents.call import call_agent

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from flujo_client.pipeline.step import Step


class ValidationResult(BaseModel):
    """A validator's verdict."""

    is_valid: bool
    score: float = 1.0
    feedback: str | None = None
    validator_name: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class PluginOutcome(BaseModel):
    """A plugin's verdict. `new_solution`, if given, takes the output's place."""

    success: bool
    feedback: str | None = None
    new_solution: Any = None


async def consult_plugins(step: Step, output: Any, context: Any, threads: Executor) -> Any:
    """Ask the plugins, higher priority first; return the output, or what a plugin put in its place.

    Raises:
        PluginError: one refused.
    """
    pairs = [each if isinstance(each, tuple) else (each, 0) for each in step.plugins]
    for plugin, _ in sorted(pairs, key=lambda pair: -pair[1]):
        verdict = (await call_agent(plugin.validate, output, {"context": context}, threads=threads)).output
        if not verdict.success:
            raise PluginError(f"{type(plugin).__name__}: {verdict.feedback or 'refused the output'}")
        output = output if verdict.new_solution is None else verdict.new_solution
    return output


async def consult_validators(step: Step, output: Any, context: Any, threads: Executor) -> None:
    """Ask every validator, and name all that refuse.

    Raises:
        ValidationError: at least one refused.
    """
    refused = []
    for validator in step.validators:
        judge = getattr(validator, "validate", validator)
        verdict = _verdict((await call_agent(judge, output, {"context": context}, threads=threads)).output)
        if not verdict.is_valid:
            name = verdict.validator_name or _name(validator)
            refused.append(f"{name}: {verdict.feedback or 'refused the output'}")
    if refused:
        raise ValidationError("; ".join(refused))


def _verdict(said: Any) -> ValidationResult:
    """A validator may answer with a result, a bool, or (bool, feedback)."""
    if isinstance(said, tuple):
        return ValidationResult(is_valid=bool(said[0]), feedback=None if said[1] is None else str(said[1]))
    if isinstance(said, bool):
        return ValidationResult(is_valid=said)
    if isinstance(said, ValidationResult):
        return said
    raise TypeError(
        f"a validator answers with a ValidationResult, a bool or (bool, feedback), not {type(said).__name__}"
    )


def _name(validator: Any) -> str:
    return str(validator.__name__) if inspect.isroutine(validator) else type(validator).__name__
