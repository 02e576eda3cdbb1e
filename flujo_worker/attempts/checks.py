"""Plugins and validators: judges of a well-formed output. What they refuse is terminal (C-01, M-288).

It must not call the agent that a plugin asks for: whoever asks the plugins does. In: the attempt's work and an output; out: the output, what a plugin put in its
place, or where it wants the input to go instead.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flujo_client.contract.verdict import PluginOutcome, result_of
from flujo_client.errors import PluginError, ValidationError
from flujo_worker.agents.call import call_agent
from flujo_worker.agents.usage import record_usage

if TYPE_CHECKING:
    from flujo_worker.runtime.work import Work


@dataclass(frozen=True, slots=True)
class Redirect:
    """That a plugin wants another agent's answer: which one, why, and who says so."""

    agent: Any
    feedback: str | None
    plugin: str


async def consult_plugins(work: Work, output: Any) -> Any:
    """Ask the plugins, higher priority first; return the output, what a plugin put in its place, or a `Redirect`.

    Raises:
        PluginError: one refused.
        TypeError: one answered with what is no verdict.
    """
    pairs = [each if isinstance(each, tuple) else (each, 0) for each in work.step.plugins]
    for plugin, _ in sorted(pairs, key=lambda pair: -pair[1]):
        name = type(plugin).__name__
        verdict = await _asked(work, plugin.validate, output)
        if not isinstance(verdict, PluginOutcome):
            raise TypeError(f"plugin {name} answers with a PluginOutcome, not {type(verdict).__name__}")
        if verdict.redirect_to is not None:
            return Redirect(verdict.redirect_to, verdict.feedback, name)
        if not verdict.success:
            raise PluginError(f"{name}: {verdict.feedback or 'refused the output'}")
        output = output if verdict.new_solution is None else verdict.new_solution
    return output


async def consult_validators(work: Work, output: Any) -> None:
    """Ask every validator, and name all that refuse.

    Raises:
        ValidationError: at least one refused.
        TypeError: one answered with what is no verdict.
    """
    refused = []
    for validator in work.step.validators:
        judge = getattr(validator, "validate", validator)
        verdict = result_of(await _asked(work, judge, output))
        if not verdict.is_valid:
            name = verdict.validator_name or _name(validator)
            refused.append(f"{name}: {verdict.feedback or 'refused the output'}")
    if refused:
        raise ValidationError("; ".join(refused))


async def _asked(work: Work, judge: Any, output: Any) -> Any:
    return await record_usage(call_agent(judge, output, work.at_hand, threads=work.threads), work.notes)


def _name(validator: Any) -> str:
    return str(validator.__name__) if inspect.isroutine(validator) else type(validator).__name__
