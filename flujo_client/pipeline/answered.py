"""The common part of questions to people and waits for events: a value from outside, of a given type, and a time after which it is late."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pydantic
from pydantic import TypeAdapter

from flujo_client.contract.json_schema import fits_schema, wrong_schema
from flujo_client.errors import FlujoError, HumanInputError
from flujo_client.pipeline.authoring import Ruled
from flujo_client.plan.identity import identify, whole
from flujo_client.schemas.ambiguity import ambiguity
from flujo_client.schemas.fail_fast import fail_fast, places_of
from flujo_client.serial import digest, encode
from flujo_client.sizes import MAX_WAIT_S


class Answered:
    """A step whose output is a value that the run is given while it waits."""

    name: str
    input_schema: Any
    default: Any
    _answer_name = "the answer"
    """The value's name in errors."""

    def _answer_traits(self) -> dict[str, Any]:
        """Return the value's part of the fingerprint."""
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
        is_schema = isinstance(self.input_schema, Mapping)
        wrong = fits_schema(value, dict(self.input_schema)) if is_schema else ambiguity(self.input_schema, value)
        try:
            if not wrong and not is_schema:
                fail_fast(self.input_schema, value)
                return TypeAdapter(self.input_schema).validate_python(value)
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
