"""Run the step's output processors between AROS's conversions and the final strict check.

They get the decoded value if only the schema rejects it, and an accepted value too; the same checks decide on their result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from pydantic_core import PydanticSerializationError, to_json

from flujo_client.errors import AgentIOValidationError
from flujo_worker.agents.shaping import is_structured_dict
from flujo_worker.aros import parse
from flujo_worker.aros.outcome import ParseOutcome, Transform
from flujo_worker.aros.type_judge import can_judge, judge_of, misfits
from flujo_worker.aros.typed import schema_of, validated
from flujo_worker.attempts.checks import Processed
from flujo_worker.runtime.fault_text import message_of
from flujo_worker.runtime.faults import ErrorHandler
from flujo_worker.runtime.http_errors import is_of_service

_STRICT: Final = {"aop": "off"}
_SHOWN: Final = 200


class OutputCorrection:
    """The output processors' attempt to correct a value that the schema, or the output's type, rejects. There is one for each output."""

    def __init__(self, names: Sequence[str], process: Callable[[Any], Awaitable[Processed]]) -> None:
        self._names, self._process = tuple(names), process
        self.was_tried = False

    async def outcome(
        self, refused: ParseOutcome, judge: Callable[[str], Awaitable[ParseOutcome]], key: str | None
    ) -> ParseOutcome:
        """Return the new outcome of a rejected one; itself if they do not change its value, which is under `key` if that is set.

        `judge` checks a JSON text strictly. Raises Exception: only control-flow signals, limits and the failures of services, as a processor raised them.
        """
        assert refused.unfit is not None
        value = refused.unfit.value
        if key is not None and not (isinstance(value, dict) and value.keys() == {key}):
            return refused
        self.was_tried = True
        before = _json(value)
        try:
            done = await self._process(value if key is None else value[key])
            after = _json(done.data if key is None else {key: done.data})
        except Exception as error:
            if ErrorHandler().handle_error(error, "agent").action == "raise" or is_of_service(error):
                raise
            raised = f"{type(error).__name__}: {message_of(error)[:_SHOWN]}"
            return refused._replace(feedback=f"{refused.feedback}; {processors_named(self._names)} raised {raised}")
        if before == after:
            return refused
        self._names = done.changed_by or self._names
        outcome = await judge(after)
        if not outcome.ok:
            return outcome._replace(stage="custom", feedback=self._after(outcome.feedback or ""))
        transforms = (*refused.unfit.transforms, *(Transform("custom", name) for name in self._names))
        return outcome._replace(stage="custom", transforms=transforms)

    def blamed(self, refusal: AgentIOValidationError) -> AgentIOValidationError:
        """Return the rejection of their result, with their names."""
        return AgentIOValidationError(self._after(refusal.message), suggestion=refusal.suggestion, **refusal.details)

    def _after(self, feedback: str) -> str:
        return f"after {processors_named(self._names)}: {feedback}"


class FinalCheck:
    """The final verdict on an output that AROS accepted and output processors then changed. `strict_schema`: the type takes nothing that it refuses."""

    def __init__(
        self, schema: Mapping[str, Any] | None, declared: Any, accepted: Any, *, strict_schema: bool = False
    ) -> None:
        self._schema, self._declared = schema, declared
        self._asked = None if schema is not None or strict_schema else declared
        self._by_instance = declared is not None and not is_structured_dict(declared) and can_judge(declared)
        self._known = misfits(accepted, declared) if self._by_instance else frozenset()

    def judge(self, output: Any, by: str) -> None:
        """Reject an output that is no longer valid: neither as a value of the type nor as JSON under the schema.

        `by` names the processors that had it since it was accepted. Raises AgentIOValidationError: it is invalid; names the processors,
        place, expected and found.
        """
        if self._by_instance and not misfits(output, self._declared) - self._known:
            return
        schema = self._schema
        if schema is None:
            schema = None if self._declared is None else schema_of(self._declared)
        if schema is None:
            return
        try:
            text = _json(output)
            outcome = parse(text, dict(schema), _STRICT, judge=self._asked and judge_of(self._asked))
            if outcome.ok and self._schema is None:
                validated(text, self._declared)
        except AgentIOValidationError as error:
            raise _refusal(f"after {by}: {error.message}", error.details) from None
        if not outcome.ok:
            raise _refusal(f"after {by}: {outcome.feedback}", outcome.details)


def processors_named(names: Sequence[str]) -> str:
    """Name output processors in a sentence."""
    return f"the output processor{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _refusal(message: str, details: Mapping[str, Any]) -> AgentIOValidationError:
    advice = "make the processor follow the schema, or change the shape in a separate step"
    return AgentIOValidationError(message, suggestion=advice, **details)


def _json(value: Any) -> str:
    """Write a processor's result as JSON. Raises AgentIOValidationError: it contains something that JSON does not have."""
    try:
        return to_json(value, by_alias=True).decode()
    except (PydanticSerializationError, RecursionError, ValueError) as error:
        why = str(error)[:_SHOWN]
    raise AgentIOValidationError(f"the output is not JSON: {why}", rule="no-json")
