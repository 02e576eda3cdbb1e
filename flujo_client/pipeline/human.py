"""Human in the loop: a step at which the run waits for a person's answer, without occupying a worker; and the base of all steps that wait for a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pydantic
from pydantic import TypeAdapter

from flujo_client.contract.json_schema import fits_schema, wrong_schema
from flujo_client.errors import FlujoError, HumanInputError
from flujo_client.pipeline.authoring import Ruled
from flujo_client.pipeline.container import Container, aliases, function_findings
from flujo_client.pipeline.context_info import ContextInfo
from flujo_client.plan import kinds
from flujo_client.plan.identity import identify, whole
from flujo_client.schemas.fail_fast import places_of, refuse_costly
from flujo_client.serial import digest, encode
from flujo_client.sizes import MAX_QUESTION, MAX_WAIT_S

ON_EXPIRY = ("fail", "default", "escalate")
_CACHED = "it asks a person and is inside a cached step; an answer is valid for one run only, so move it outside"


class Answered:
    """A step whose output is a value that the run is given while it waits."""

    name: str
    input_schema: Any
    default: Any
    _answer_name = "the answer"
    """The value's name in errors."""

    def traits(self) -> dict[str, Any]:
        schema: Any = self.input_schema
        if schema is not None:
            schema = {"schema": digest(whole(schema))} if isinstance(schema, Mapping) else identify(schema)
        return {"input_schema": schema, "default": encode(self.default, path="default")}

    def schema(self) -> dict[str, Any] | None:
        """Return the JSON Schema of the value; None if any is valid."""
        if isinstance(self.input_schema, Mapping):
            return dict(self.input_schema)
        return None if self.input_schema is None else TypeAdapter(self.input_schema).json_schema()

    def read(self, value: Any) -> Any:
        """Read the value as the required type. Raises HumanInputError, which names the places but not the values, if it does not fit."""
        if self.input_schema is None:
            return value
        refused = f"{self._answer_name} to '{self.name}' does not fit: "
        try:
            if not isinstance(self.input_schema, Mapping):
                refuse_costly(self.input_schema, value)
                return TypeAdapter(self.input_schema).validate_python(value)
            wrong = fits_schema(value, dict(self.input_schema))
        except pydantic.ValidationError as error:
            wrong = places_of(error, "answer")
        if wrong:
            raise HumanInputError(refused + wrong, code="ANSWER_REFUSED")  # without its cause, which shows the values
        return value

    def _answer_findings(self, expires: str, on_expiry: str, known: tuple[str, ...]) -> Iterator[str]:
        """Find faults in the type, and in the options of the time, which are given by their names."""
        given, policy = getattr(self, expires), getattr(self, on_expiry)
        if policy not in known:
            yield f"{on_expiry} {str(policy)[:40]!r} must be one of {', '.join(known)}"
        elif policy != "fail" and given is None:
            yield f"{on_expiry} '{policy}' needs {expires}"
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if given is not None and not (is_number and 0 < given <= MAX_WAIT_S):
            yield f"{expires} must be a number of seconds above 0 and up to {MAX_WAIT_S:.0f}, ten years, got {repr(given)[:40]}"
        try:
            schema = self.schema()
            if schema is not None and (wrong := wrong_schema(schema)):
                yield Ruled(f"input_schema {wrong}", "V-S1")
                return
            encode(self.default, path="default")
            if policy == "default":
                self.read(self.default)
        except FlujoError as error:
            yield error.message
        except (pydantic.errors.PydanticUserError, TypeError, ValueError) as error:
            text = f"input_schema must be a type or a JSON Schema: {str(error).splitlines()[0][:200]}"
            yield Ruled(text, "V-S1")


@aliases(message="message_for_user")
@dataclass(frozen=True, eq=False)
class HumanInTheLoopStep(Answered, Container):
    """Ask a person, and continue with the answer as output.

    Args:
        message_for_user: the question: a text, or `(input, context) -> str`; alias `message`. It names the step when None. An empty
            question fails the step.
        input_schema: the answer's type: a pydantic model, another type, or a JSON Schema as a mapping; anything when None.
        sink_to: a dotted context path that receives the answer.
        expires_s: seconds after which the question closes; never when None.
        on_expiry: what happens then: `fail`, `default` (the answer is `default`), or `escalate` (ask again).
        default: the answer for `default`.
        escalate_to: who gets the second question, in your own words, as `approvals` shows it.
    """

    spec = kinds.HUMAN

    message_for_user: Any = None
    input_schema: Any = None
    sink_to: str | None = field(default=None, kw_only=True)
    expires_s: float | None = None
    on_expiry: str = "fail"
    default: Any = None
    escalate_to: str | None = None

    def rules(self) -> dict[str, Any]:
        rules = super().rules() | {"expires_s": self.expires_s, "on_expiry": self.on_expiry}
        return rules | ({"escalate_to": self.escalate_to} if self.on_expiry == "escalate" else {})

    def functions(self) -> dict[str, Any]:
        return {"message": self.message_for_user} if callable(self.message_for_user) else {}

    def traits(self) -> dict[str, Any]:
        return {"message": None if callable(self.message_for_user) else self.message_for_user, **super().traits()}

    def text(self) -> str:
        """Return the question where no function makes it."""
        if self.message_for_user is None:
            return f"Step '{self.name}' requires human input."
        return str(self.message_for_user)

    def findings(self, place: ContextInfo) -> Iterator[str]:
        yield from super().findings(place)
        if place.is_cached:
            yield Ruled(_CACHED, "HITL-NESTED-001")
        message = self.message_for_user
        if message is not None and not isinstance(message, str):
            yield from function_findings("message_for_user", message, "input, context")
        elif message is not None and not message.strip():
            yield "message_for_user is empty"
        elif message is not None and len(message) > MAX_QUESTION:
            yield f"message_for_user has {len(message):,} characters; at most {MAX_QUESTION:,} are allowed"
        if self.escalate_to is not None and (not isinstance(self.escalate_to, str) or self.on_expiry != "escalate"):
            yield "escalate_to must be a text, and needs on_expiry 'escalate'"
        yield from self._answer_findings("expires_s", "on_expiry", ON_EXPIRY)
