"""Questions to the functions that users wrote: conditions, mappers, iterables, selections; and questions to people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import pydantic

from flujo_client.contract.context import ContextState, PipelineContext
from flujo_client.contract.results import Refinement
from flujo_client.errors import HumanInputError, PipelineError
from flujo_client.pipeline.conditional import plain_key, resolve_key
from flujo_client.serial import Packed, stored
from flujo_client.sizes import MAX_BRANCHES, MAX_QUESTION
from flujo_worker.runtime.call_args import CONTEXT
from flujo_worker.runtime.question import UserCodeCall, field_at
from flujo_worker.runtime.write_context import mark


def exit_condition(question: UserCodeCall) -> bool:
    """Return whether a loop is done. Values: the last output, the accumulated context."""
    return bool(question.call("exit_condition", question.value(0), CONTEXT))


def _mapped(question: UserCodeCall, role: str, mapper: str, *more: Any, **optional: Any) -> Packed:
    given = question.call(role, question.value(0), *more, **optional)
    return question.pack(given, f"the result of {mapper}")


def initial_input(question: UserCodeCall) -> Packed:
    """Make a loop's first input. Values: the loop's input, the context."""
    return _mapped(question, "initial_input", "initial_input_to_loop_body_mapper", CONTEXT)


def iteration_input(question: UserCodeCall) -> Packed:
    """Make the next iteration's input. Values: the last output, the context, the loop's input."""
    more = CONTEXT, question.data["index"]
    return _mapped(question, "iteration_input", "iteration_input_mapper", *more, original_input=question.value(2))


def output(question: UserCodeCall) -> Packed:
    """Make a loop's or a map's output. Values: the last output, or all of them; the context, its input."""
    return _mapped(question, "output", question.step.roles["output"][0], CONTEXT, original_input=question.value(2))


def items(question: UserCodeCall) -> list[Packed]:
    """Read a map's items. Values: its input, the context."""
    path = question.data["iterable"]
    context = question.value(1)
    if context is None:
        raise PipelineError(f"it maps over the context's '{path}', but this run has no context")
    found = field_at(context, path)
    if isinstance(found, (str, bytes, Mapping)) or not isinstance(found, Iterable):
        raise PipelineError(f"the context's '{path}' is a {type(found).__name__}, not an iterable of items")
    most = MAX_BRANCHES if question.step.rules()["parallel"] else None
    items = list(found if most is None else islice(found, most + 1))
    if most is not None and len(items) > most:
        what = f"the context's '{path}' has more than {most:,} items, each of which would be a branch"
        raise PipelineError(what, suggestion="map over them one after the other, or in parts")
    return [question.pack(item, f"{path}[{place}]") for place, item in enumerate(items)]


def collect(question: UserCodeCall) -> Packed:
    """Collect all values in a list."""
    return question.pack_tree([packed.tree() for packed in question.values if packed is not None], "results")


def condition(question: UserCodeCall) -> tuple[Any, str | None]:
    """Return which path a conditional takes: the condition's answer, and the body's key or None. Values: the last output, the context."""
    answer = plain_key(question.call("condition", question.value(0), CONTEXT))
    key = resolve_key(question.step.rules(), answer)
    return (answer if isinstance(answer, (str, bool, int)) else f"a {type(answer).__name__}"), key


def branch_input(question: UserCodeCall) -> Packed:
    """Make the chosen path's input. Values: the conditional's input, the context."""
    return _mapped(question, "branch_input", "branch_input_mapper", CONTEXT)


def branch_output(question: UserCodeCall) -> Packed:
    """Make a conditional's output. Values: the path's output, the context, the conditional's input."""
    more = question.data["key"], CONTEXT
    return _mapped(question, "branch_output", "branch_output_mapper", *more, original_input=question.value(2))


def selection(question: UserCodeCall) -> list[str]:
    """Return the branches that a router's agent named, in declared order, each once; skip unknown names. Value: its output."""
    answer = question.value(0)
    named = [answer] if isinstance(answer, str) else answer
    if not isinstance(named, (list, tuple, set, frozenset)) or not all(isinstance(each, str) for each in named):
        raise PipelineError(f"its agent must answer with names of branches, got a {type(answer).__name__}")
    return [name for name in question.data["branches"] if name in named]


def pair(question: UserCodeCall) -> Packed:
    """Pair an artifact with its critic's answer. Values: both."""
    answer = question.value(1)
    try:
        refinement = Refinement(artifact=question.value(0), check=answer)
    except pydantic.ValidationError:  # its text would show the answer
        raise PipelineError(f"its critic must return a RefinementCheck, got a {type(answer).__name__}") from None
    return question.pack(refinement, "refinement")


def question(question: UserCodeCall) -> tuple[str, dict[str, Any] | None, Packed | None]:
    """Return the question as text and JSON Schema, and the context with the status `paused`. Values: the input, the context."""
    step = question.step
    message = question.call("message", question.value(0), CONTEXT) if step.functions() else step.text()
    if not isinstance(message, str) or not message.strip():
        raise HumanInputError(f"the message of step '{step.name}' is empty", code="EMPTY_MESSAGE")
    if len(message) > MAX_QUESTION:
        problem = f"has {len(message):,} characters; at most {MAX_QUESTION:,} are allowed"
        raise HumanInputError(f"the message of step '{step.name}' {problem}", code="MESSAGE_TOO_LONG")
    schema = step.schema()
    stored(schema, path=f"input_schema of step '{step.name}'")  # answers are checked against what is read back
    return message, schema, _paused(question, message)


def pause(question: UserCodeCall) -> tuple[str, Packed | None]:
    """Return what a step that raised a pause asks, and the context as for any question. Values: the input, the context. Data: the `message`."""
    message = question.data["message"].strip() or f"Step '{question.step.name}' requires human input."
    return message, _paused(question, message)


def sleep(question: UserCodeCall) -> tuple[str, float]:
    """Return how many `seconds` a run sleeps, or `until` which unix second. Values: the input, the context."""
    from flujo_client.pipeline.sleep import READERS

    name, given = question.step.given
    if callable(given):
        given = question.call(name, question.value(0), CONTEXT)
    try:
        return name, READERS[name](given)
    except ValueError as error:
        raise PipelineError(f"`{name}` of step '{question.step.name}' {error}") from None


def _paused(question: UserCodeCall, message: str) -> Packed | None:
    context = question.value(1)
    if not isinstance(context, PipelineContext):
        return None
    mark(context, ContextState.PAUSED, message)
    return question.pack(context, "context")
