"""The reference: interpret a pipeline by plain recursion over the objects that its author writes (M-285).

It knows no messages, rows or decisions; isolation is a deep copy, and merging is C-46 on Python values. In: a pipeline, an input and a
context; out: its end and its history. The one thing it cannot know is which branches of a fan-out that failed were stopped
before they came to an end: it is told, and refuses to believe it where nothing gave a reason to stop them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import count
from typing import Any

from closure_parts import answer_to
from interpreter_contexts import Stop, absorbed, exported, imported, in_state, included, keep, merged

from flujo_client.contract.results import Refinement, RefinementCheck, StepResult
from flujo_client.errors import ExecutionError as Failed
from flujo_client.errors import HumanInputError, NonRetryableError, PipelineAbortSignal, PipelineError, ValidationError
from flujo_client.pipeline.pipeline import steps_of


@dataclass
class Told:
    """What the history tells of a node, or of a container's child. `cut`: it was stopped, and nothing else is known of it."""

    name: str
    success: bool = False
    output: Any = None
    attempts: int = 1
    metadata: dict[str, Any] = field(default_factory=dict)
    history: list[Told] = field(default_factory=list)
    cut: bool = False


@dataclass
class Ending:
    """How a run ends."""

    status: str
    output: Any
    context: Any
    error: str | None
    history: list[Told]


def interpret(pipeline: Any, value: Any, context: Any, is_cut: Callable[[str], bool] = lambda _: False) -> Ending:
    """Run a pipeline.

    Args:
        pipeline: what to run.
        value: its input.
        context: a model, or None.
        is_cut: tells whether the branch at a place was stopped.
    """
    history: list[Told] = []
    try:
        output, context = _Reference(is_cut).sequence(pipeline, "", value, context, history)
    except Stop as stop:
        return Ending("failed", None, stop.context, stop.kind, history)
    return Ending("succeeded", output, context, None, history)


class _Reference:
    def __init__(self, is_cut: Callable[[str], bool]) -> None:
        self._is_cut = is_cut

    def sequence(
        self,
        body: Any,
        place: str,
        value: Any,
        context: Any,
        history: list[Told],
        leaves: Callable[..., bool] | None = None,
    ) -> tuple[Any, Any]:
        """Run a body on copies of its own; history grows as it goes. Raises Stop with what it had.

        `leaves` tells of an answer whether the body ends with it.
        """
        value, context = deepcopy((value, context))
        for step in steps_of(body):
            history.append(told := Told(step.name))
            try:
                node = getattr(self, f"_{step.kind}")
                output, after = node(step, f"{place}/{step.name}".lstrip("/"), value, context, told)
                if step.kind not in ("step", "background"):
                    after = deepcopy(after)
                    keep(after, step.name, output)
            except Stop as stop:
                # what a container's finished children handed to it is its sequence's (C-13)
                stop.value, stop.context = value, context if stop.context is None else stop.context
                raise
            told.success, told.output = True, output
            value, context = deepcopy((output, after))
            if leaves is not None and step.kind == "human" and leaves(value, context):
                break
        return value, context

    def _child(
        self, told: Told, name: str, body: Any, place: str, value: Any, context: Any, leaves: Any = None
    ) -> tuple[Any, Any]:
        told.history.append(child := Told(name))
        output, after = self.sequence(body, place, value, context, child.history, leaves)
        child.success, child.output = True, output
        return output, after

    # steps

    def _step(self, step: Any, _: str, value: Any, context: Any, told: Told) -> tuple[Any, Any]:
        guidance = None
        for told.attempts in range(1, step.config.max_retries + 2):
            own = deepcopy(context)
            try:
                output = _called(getattr(step.agent, "run", step.agent), value, context=own, guidance=guidance)
                for processor in step.processors.output_processors:
                    output = _called(processor, output)
            except (PipelineAbortSignal, NonRetryableError) as error:
                raise Stop(error) from error
            except Exception as error:  # noqa: BLE001 - whatever an agent raises
                guidance, failure = str(error), error
                continue
            _judge(step, output)
            return output, absorbed(step, output, own)
        raise Stop(failure)

    def _human(self, step: Any, _: str, value: Any, context: Any, told: Told) -> tuple[Any, Any]:
        message = _ask(step.message_for_user, value, context)
        if not message:
            raise Stop(HumanInputError(""))
        told.output = answer_to(message)
        return told.output, absorbed(step, told.output, deepcopy(context))

    def _sleep(self, step: Any, _: str, value: Any, context: Any, told: Told) -> tuple[Any, Any]:
        told.output = value
        return value, absorbed(step, value, deepcopy(context))

    # one child at a time

    def _loop(self, step: Any, at: str, value: Any, context: Any, told: Told) -> tuple[Any, Any]:
        told.attempts, held = 0, [context]
        try:
            output = self._rounds(step, at, value, held, told)
        except Stop as stop:
            stop.context = held[0]
            raise
        finally:
            broken = told.metadata["exit_reason"] == "body_step_error"
            told.metadata["iterations"] = told.attempts - broken
        return output, held[0]

    def _rounds(self, step: Any, at: str, value: Any, held: list[Any], told: Told) -> Any:
        """Go round. `held` has the context so far, and the metadata why it ended if it ends here."""
        because = partial(told.metadata.__setitem__, "exit_reason")
        because("initial_input_mapper_error")
        given = _mapped(step.initial_input_to_loop_body_mapper, value, held[0], otherwise=value)
        while True:
            told.attempts += 1
            because("body_step_error")
            turn = f"#{told.attempts}"
            output, held[0] = self._child(told, step.name + turn, step.loop_body_pipeline, at + turn, given, held[0])
            because("exit_condition_error")
            ended = "condition" if _ask(step.exit_condition_callable, output, held[0]) else "max_loops"
            if ended == "condition" or told.attempts >= step.max_loops:
                break
            because("iteration_input_mapper_error")
            mapper, number = step.iteration_input_mapper, told.attempts
            given = _mapped(mapper, output, held[0], number, otherwise=output, original_input=value)
        because("loop_output_mapper_error")
        output = _mapped(step.loop_output_mapper, output, held[0], otherwise=output, original_input=value)
        because(ended)
        if ended == "max_loops" and step.fails_at_max:
            raise Stop(Failed(""))
        return output

    def _map(self, step: Any, at: str, value: Any, context: Any, told: Told) -> tuple[Any, Any]:
        items, outputs = _items(step, context), []
        named = [(f"#{number}", f"{step.name}#{number}", item) for number, item in enumerate(items, start=1)]
        if step.is_fan_out:
            bodies = [(suffix, name, step.pipeline_to_run, item) for suffix, name, item in named]
            return self._together(step, at, bodies, context, told)
        told.metadata["items"] = len(items)
        try:
            for suffix, name, item in named:
                output, context = self._child(told, name, step.pipeline_to_run, at + suffix, item, context)
                outputs.append(output)
        except Stop as stop:
            # the items that were not begun are told of
            told.history += [Told(name, cut=True) for _, name, _ in named[len(outputs) + 1 :]]
            stop.context = context
            raise
        finally:
            told.metadata["iterations"] = len(outputs)
        return outputs, context

    def _conditional(self, step: Any, at: str, value: Any, context: Any, told: Told) -> tuple[Any, Any]:
        said = _ask(step.condition_callable, value, context)
        bodies = {(type(key), key): body for key, body in step.branches.items()}
        key = (
            (str(said).lower() if isinstance(said, bool) else str(said)) if (type(said), said) in bodies else "default"
        )
        body = bodies.get((type(said), said), step.default_branch_pipeline)
        if body is None:
            raise Stop(Failed(""))
        told.metadata.update(executed_branch_key=said, resolved_branch_key=key)
        given = _mapped(step.branch_input_mapper, value, context, otherwise=value)
        try:
            output, after = self._child(told, key, body, f"{at}/{key}", given, context)
        except Stop as stop:
            stop.context = None
            raise
        return _mapped(step.branch_output_mapper, output, said, after, otherwise=output), after

    def _nested(self, step: Any, at: str, value: Any, context: Any, told: Told) -> tuple[Any, Any]:
        inside = imported(step, value, context)
        try:
            output, after = self._child(told, step.name, step.pipeline, f"{at}/body", value, inside)
        except Stop as stop:
            stop.context = None
            if step.on_failure == "abort" or stop.is_final:
                raise
            told.metadata["on_failure"] = step.on_failure
            return (value if step.on_failure == "skip" else step.default), context
        after = exported(step, context, after)
        if step.keeps_input and not isinstance(output, RefinementCheck):
            raise Stop(PipelineError(""))
        return (Refinement(artifact=value, check=output) if step.keeps_input else output), after

    def _machine(self, step: Any, at: str, value: Any, context: Any, told: Told) -> tuple[Any, Any]:
        held = [context]
        try:
            output = self._visits(step, at, value, held, told)
        except Stop as stop:
            stop.context = held[0]
            raise
        return output, held[0]

    def _visits(self, step: Any, at: str, value: Any, held: list[Any], told: Told) -> Any:
        """Go from state to state. `held` has the context so far."""
        state, failure = step.start_state, None
        for visits in count():
            told.metadata["iterations"] = visits
            if state is None:
                raise failure or Stop(Failed(""))
            if state in step.states and visits >= step.max_visits:
                raise Stop(Failed(""))
            held[0] = in_state(held[0], state)
            if state not in step.states:
                break
            place, failure, left = f"{at}#{visits + 1}/{state}", None, _Leaving(step, state)
            try:
                value, held[0] = self._child(told, state, step.states[state], place, value, held[0], left)
            except Stop as stop:
                if stop.is_final:
                    del told.metadata["iterations"]
                    raise
                value, failure = stop.value, stop
            told.metadata["iterations"] = visits + 1
            if left.stop is not None:
                raise left.stop
            if failure is None and left.to is None and state in step.end_states:
                break
            state = left.to or _following(step, state, "failure" if failure else "success", value, held[0])
        told.metadata["final_state"] = state
        return value

    def _fallback(self, step: Any, at: str, value: Any, context: Any, told: Told) -> tuple[Any, Any]:
        """A step that needs no fallback is told as it is; else both are, and what gave the last word says the rest."""
        written, both = step.primary, list[Told]()
        try:
            return self.sequence(replace(written, fallback_step=None), f"{at}/primary", value, context, both)
        except Stop as stop:
            if stop.is_final:
                raise
            other = written.fallback_step
            told.metadata["fallback_triggered"] = True
            # C-01: what may run once
            once = (
                replace(other, config=other.config.model_copy(update={"max_retries": 0})) if other.performs else other
            )
            return self.sequence(once, f"{at}/fallback", value, context, both)
        finally:
            told.attempts = sum(each.attempts for each in both)
            told.metadata = both[-1].metadata | told.metadata
            told.history = both if len(both) > 1 else both[0].history

    def _background(self, step: Any, at: str, value: Any, context: Any, told: Told) -> tuple[Any, Any]:
        """What it does is no one's here."""
        return value, context

    # side by side

    def _parallel(self, step: Any, at: str, value: Any, context: Any, told: Told) -> tuple[Any, Any]:
        named = [(f"/{name}", name, body, value) for name, body in step.branches.items()]
        return self._together(step, at, named, context, told)

    def _router(self, step: Any, at: str, value: Any, context: Any, told: Told) -> tuple[Any, Any]:
        said, context = self._step(step, at, value, context, told)
        if not isinstance(said, (str, list)):
            raise Stop(PipelineError(""))
        names = [said] if isinstance(said, str) else said
        named = [(f"/{name}", name, body, value) for name, body in step.branches.items() if name in names]
        try:
            return self._together(step, at, named, context, told)
        except Stop as stop:
            stop.context = context  # what the agent wrote is merged: its attempt has succeeded (M-284)
            raise

    def _together(self, step: Any, at: str, named: Sequence[Any], context: Any, told: Told) -> tuple[Any, Any]:
        start, failed, outputs, ended = included(step, context), [], {}, {}
        told.metadata["executed_branches"] = [name for _, name, _, _ in named]
        for suffix, name, body, value in named:
            if self._is_cut(at + suffix):
                told.history.append(Told(name, cut=True))
                continue
            try:
                outputs[name], ended[name] = self._child(told, name, body, at + suffix, value, start)
            except Stop as stop:
                outputs[name] = StepResult(name=name, success=False)
                failed.append(stop)
        propagates = step.on_branch_failure == "propagate"
        final = [stop for stop in failed if stop.is_final]
        if any(child.cut for child in told.history):
            assert final or (propagates and failed), f"a branch of {at} was stopped without a reason"
        if final or (failed and (propagates or not ended)):
            stop = (final or failed)[0]
            stop.context = None
            raise stop
        return _reduced(step, outputs), merged(step, context, start, ended, outputs)


@dataclass
class _Leaving:
    """Whether an answer leads on from a state, and where."""

    machine: Any
    state: str
    to: str | None = None
    stop: Stop | None = None

    def __call__(self, answer: Any, context: Any) -> bool:
        try:
            to = _following(self.machine, self.state, "pause", answer, context)
        except Stop as stop:
            self.stop = stop
            return True
        self.to = None if to == self.state else to
        return self.to is not None


def _items(step: Any, context: Any) -> list[Any]:
    items = reduce(lambda place, name: getattr(place, name, None), step.iterable_input.split("."), context)
    if items is None or isinstance(items, (str, dict)):
        raise Stop(PipelineError(""))
    return list(items)


def _following(step: Any, ended: str, event: str, value: Any, context: Any) -> str | None:
    for each in step.transitions:
        fits = each.from_state in (ended, "*") and each.on == event
        if fits and (each.when is None or _ask(each.when, value, context)):
            return str(each.to)
    wanted = getattr(context, "next_state", None) if event == "success" else None
    if wanted is not None and wanted not in step.states and wanted not in step.end_states:
        raise Stop(PipelineError(""))
    return wanted


def _reduced(step: Any, outputs: dict[str, Any]) -> Any:
    given = list(outputs.values())
    match "values" if step.kind == "map" else step.reduce:
        case None:
            return outputs
        case "keys":
            return list(outputs)
        case "values":
            return given
        case "first" | "last" as which:
            return (given or [None])[-1 if which == "last" else 0]
        case "concat":
            if all(isinstance(each, str) for each in given):
                return "".join(given)
            return [item for each in given for item in (each if isinstance(each, (list, tuple)) else [each])]
        case "union":
            if not all(isinstance(each, dict) for each in given):
                raise Stop(PipelineError(""))
            return {key: item for each in given for key, item in each.items()}
        case function:
            return _ask(function, outputs)


def _mapped(function: Any, *given: Any, otherwise: Any, **optional: Any) -> Any:
    return otherwise if function is None else _ask(function, *given, **optional)


def _called(function: Any, *given: Any, **optional: Any) -> Any:
    taken = inspect.signature(function).parameters
    answer = function(*deepcopy(given), **{name: each for name, each in optional.items() if name in taken})
    if inspect.iscoroutine(answer):
        try:
            answer.send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("the reference waits for nothing")
    return answer


def _ask(function: Any, *given: Any, **optional: Any) -> Any:
    try:
        return _called(function, *given, **optional)
    except Exception as error:
        raise Stop(error) from error


def _judge(step: Any, output: Any) -> None:
    for validator in step.validators:
        if not _ask(validator, output):
            raise Stop(ValidationError(""))
