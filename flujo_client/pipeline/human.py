"""Human in the loop: a step at which the run waits for a person's answer, without occupying a worker.

`input_schema` defines valid answers; the message is made when the step begins. It must not decide anything
about a run: that is the workers' part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pydantic
from pydantic import TypeAdapter

from flujo_client.contract.approval import check_schema
from flujo_client.contract.json_schema import fits_schema
from flujo_client.errors import FlujoError, HumanInputError
from flujo_client.pipeline.container import Container, aliases, function_findings
from flujo_client.pipeline.context_info import ContextInfo
from flujo_client.plan import kinds
from flujo_client.plan.identity import identify, whole
from flujo_client.schemas.ambiguity import ambiguity
from flujo_client.schemas.fail_fast import fail_fast
from flujo_client.serial import digest, encode
from flujo_client.sizes import MAX_QUESTION

MOST_S = 10 * 366 * 86_400
"""The maximum seconds until a question closes."""
ON_EXPIRY = ("fail", "default", "escalate")


@aliases(message="message_for_user")
@dataclass(frozen=True, eq=False)
class HumanInTheLoopStep(Container):
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
        return {
            "message": None if callable(self.message_for_user) else self.message_for_user,
            "input_schema": _identity(self.input_schema),
            "default": encode(self.default, path="default"),
        }

    def text(self) -> str:
        """Return the question where no function makes it."""
        if self.message_for_user is None:
            return f"Step '{self.name}' requires human input."
        return str(self.message_for_user)

    def schema(self) -> dict[str, Any] | None:
        """Return the JSON Schema of answers; None if any answer is valid."""
        if self.input_schema is None or isinstance(self.input_schema, Mapping):
            return None if self.input_schema is None else dict(self.input_schema)
        return TypeAdapter(self.input_schema).json_schema()

    def read(self, value: Any) -> Any:
        """Read an answer as the required type. Raises HumanInputError, which names the places but not the values, if it does not fit."""
        if self.input_schema is None:
            return value
        if isinstance(self.input_schema, Mapping):
            wrong = fits_schema(value, dict(self.input_schema))
            if wrong:
                raise HumanInputError(f"the answer to '{self.name}' does not fit: {wrong}", code="ANSWER_REFUSED")
            return value
        if ambiguous := ambiguity(self.input_schema, value):
            raise HumanInputError(f"the answer to '{self.name}' does not fit: {ambiguous}", code="ANSWER_REFUSED")
        try:
            fail_fast(self.input_schema, value)
            return TypeAdapter(self.input_schema).validate_python(value)
        except pydantic.ValidationError as error:
            wrong = "; ".join(
                f"{'.'.join(map(str, each['loc'])) or 'answer'}: {each['msg']}" for each in error.errors()
            )
            message = f"the answer to '{self.name}' does not fit: {wrong}"
        raise HumanInputError(message, code="ANSWER_REFUSED")  # without its cause, which shows the values

    def findings(self, place: ContextInfo) -> Iterator[str]:
        yield from super().findings(place)
        if place.is_cached:
            yield "it asks a person and is inside a cached step; an answer is valid for one run only, so move it outside"
        message = self.message_for_user
        if message is not None and not isinstance(message, str):
            yield from function_findings("message_for_user", message, "input, context")
        elif message is not None and not message.strip():
            yield "message_for_user is empty"
        elif message is not None and len(message) > MAX_QUESTION:
            yield f"message_for_user has {len(message):,} characters; at most {MAX_QUESTION:,} are allowed"
        if self.on_expiry not in ON_EXPIRY:
            yield f"on_expiry {str(self.on_expiry)[:40]!r} must be one of {', '.join(ON_EXPIRY)}"
        elif self.on_expiry != "fail" and self.expires_s is None:
            yield f"on_expiry '{self.on_expiry}' needs expires_s"
        given: Any = self.expires_s
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if given is not None and not (is_number and 0 < given <= MOST_S):
            yield f"expires_s must be a number of seconds above 0, got {str(self.expires_s)[:40]!r}"
        if self.escalate_to is not None and (not isinstance(self.escalate_to, str) or self.on_expiry != "escalate"):
            yield "escalate_to must be a text, and needs on_expiry 'escalate'"
        yield from self._schema_findings()

    def _schema_findings(self) -> Iterator[str]:
        try:
            schema = self.schema()
            if schema is not None:
                check_schema(schema)
            encode(self.default, path="default")
            if self.on_expiry == "default":
                self.read(self.default)
        except FlujoError as error:
            yield error.message
        except (pydantic.errors.PydanticUserError, TypeError, ValueError) as error:
            yield f"input_schema must be a type or a JSON Schema: {str(error).splitlines()[0][:200]}"


def _identity(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        return {"schema": digest(whole(schema))}
    return None if schema is None else identify(schema)
