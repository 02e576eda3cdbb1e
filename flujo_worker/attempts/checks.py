"""The user's code around a step's agent: processors of prompts and outputs; plugins and validators, which judge.

Scores become events, which `flujo lens evals` lists. A rejection is terminal. The caller calls the agent that a plugin redirects to.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from flujo_client.contract.verdict import PluginOutcome, result_of
from flujo_client.errors import PluginError, TemplateResolutionError, ValidationError
from flujo_client.frozen import frozen
from flujo_client.pipeline.compiled_text import Expressed
from flujo_client.redact import preview
from flujo_worker.agents.call import answered, call_agent, callee_of
from flujo_worker.agents.pricing import record_usage
from flujo_worker.concurrency.event_loop import is_async
from flujo_worker.observe.log import emit
from flujo_worker.runtime.attempt_run import AttemptRun, Work
from flujo_worker.runtime.call_args import CONTEXT, arranged

JUDGED: Final = "step.judged"
_LONGEST: Final = 500


@frozen
class Redirect:
    """That a plugin wants another agent's answer: which one, why, and who says so."""

    agent: Any
    feedback: str | None
    plugin: str


class Processed(NamedTuple):
    """The data that passed through processors, and the names of those that changed them."""

    data: Any
    changed_by: tuple[str, ...] = ()


async def processed(processors: Sequence[Any], data: Any, work: Work, run: AttemptRun) -> Processed:
    """Pass data through processors, in order. Processors are objects with `process(data, context)`, or callables; sync or async."""
    changed_by: list[str] = []
    for processor in processors:
        before = data
        data = await _called(work, run, getattr(processor, "process", processor), data)
        if data is not before and data != before:
            changed_by.append(name_of(processor))
    return Processed(data, tuple(changed_by))


def name_of(processor: Any) -> str:
    """Return a processor's name, as in events and errors."""
    return str(getattr(processor, "name", None) or getattr(processor, "__name__", type(processor).__name__))


async def consult_plugins(work: Work, run: AttemptRun, output: Any) -> Any:
    """Call the plugins, higher priority first; return the output, a plugin's replacement, or a `Redirect`.

    Raises:
        PluginError: one rejected it.
        TypeError: one returned an answer that is not a verdict.
    """
    pairs = [each if isinstance(each, tuple) else (each, 0) for each in work.step.plugins]
    for plugin, _ in sorted(pairs, key=lambda pair: -pair[1]):
        name = type(plugin).__name__
        verdict = await _called(work, run, plugin.validate, output)
        if not isinstance(verdict, PluginOutcome):
            raise TypeError(f"plugin {name} must return a PluginOutcome, got {type(verdict).__name__}")
        if verdict.redirect_to is not None:
            return Redirect(verdict.redirect_to, verdict.feedback, name)
        if not verdict.success:
            why = verdict.feedback or "refused the output"
            raise PluginError(f"{name}: {why}", details={"by": name, "why": why})
        output = output if verdict.new_solution is None else verdict.new_solution
    return output


async def consult_validators(work: Work, run: AttemptRun, output: Any) -> None:
    """Call every validator, and name all that reject; without `strict_validation` their messages go into the step's metadata.

    Raises:
        ValidationError: at least one rejected, and that fails the step.
        TypeError: one returned an answer that is not a verdict.
    """
    refused: list[tuple[str, str]] = []
    for validator in work.step.validators:
        judge = getattr(validator, "validate", validator)
        verdict = result_of(await _called(work, run, judge, output))
        named = validator if inspect.isroutine(validator) else type(validator)
        name = verdict.validator_name or named.__name__
        emit_verdict(name, verdict.score, verdict.feedback, passed=verdict.is_valid)
        if not verdict.is_valid:
            refused.append((name, verdict.feedback or "refused the output"))
    feedback = "; ".join(f"{name}: {why}" for name, why in refused)
    if work.step.strict_validation:
        if refused:
            raise ValidationError(feedback, details=_details(refused))
        return
    run.notes["validation_passed"] = not refused
    if refused:
        run.notes["validation_feedback"] = feedback


async def check_invariants(work: Work, run: AttemptRun, output: Any) -> None:
    """Call every invariant, and list all that do not hold.

    Raises:
        ValidationError: at least one does not hold, or cannot be judged.
        TypeError: a function returned an answer that is not a verdict.
    """
    broken: list[tuple[str, str]] = []
    for name, judge in work.invariants:
        try:
            if isinstance(judge, Expressed):
                answer: Any = bool(judge(output, run.context))
            else:
                answer = await _called(work, run, judge, output)
        except TemplateResolutionError as error:
            broken.append((name, f"cannot be judged: {error.message}"))
            continue
        verdict = result_of(answer)
        if not verdict.is_valid:
            broken.append((name, f"does not hold{f': {verdict.feedback}' if verdict.feedback else ''}"))
    if broken:
        feedback = "; ".join(f"'{name}' {why}" for name, why in broken)
        raise ValidationError(f"static invariant {feedback}", details=_details(broken))


def _details(rejections: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return who rejected first and why, and how many others did."""
    by, why = rejections[0]
    return {"by": by, "why": why, "more": len(rejections) - 1}


async def _called(work: Work, run: AttemptRun, part: Any, data: Any) -> Any:
    by = name_of(getattr(part, "__self__", part))
    if callable(getattr(part, "run", None)):
        callee = callee_of(part)
        answer = call_agent(callee, data, run.at_hand(callee), threads=work.threads)
    else:
        resources = {} if run.resources is None else {"resources": run.resources}
        arrangement = arranged(part, (data, CONTEXT), context=lambda: run.context, options=resources)
        answer = answered(arrangement, is_async=is_async(part), threads=work.threads)
    return await record_usage(answer, run, by=by)


def emit_verdict(judge: str, score: float, feedback: str | None, *, passed: bool | None = None) -> None:
    """Emit a judge's score, and whether that passed, where the judge decides."""
    shown = None if feedback is None else preview(feedback, _LONGEST)
    emit(JUDGED, judge=judge, score=score, passed=passed, feedback=shown)


def emit_judgement(step: str, output: Any) -> None:
    """Emit the score of an output that is a judged checklist, or an evaluator's answer."""
    # Until the module is imported whole, nothing is of its classes.
    recipes = sys.modules.get("flujo_client.contract.recipes")
    if not isinstance(output, (getattr(recipes, "Score", ()), getattr(recipes, "Checklist", ()))):
        return
    from flujo_client.contract.recipes import Checklist, Score

    if isinstance(output, Score):
        emit_verdict(step, output.score, output.reason)
    elif isinstance(output, Checklist) and any(item.passed is not None for item in output.items):
        refused = "; ".join(f"{item.description}: {item.feedback or 'not passed'}" for item in output.failed)
        emit_verdict(step, output.score, refused or None, passed=output.is_passed)
