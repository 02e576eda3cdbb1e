"""The contract of an agent that is called as a tool: a JSON Schema that values must satisfy, with rejections that a model can act on.

What holds is a copy of the value with the schema's defaults, without properties that were not expected. References stay inside the schema.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_jsonable_python

from flujo_client.errors import ConfigurationError, FlujoError, SerializationError
from flujo_client.frozen import frozen
from flujo_client.schemas.parts import step
from flujo_client.serial import digest, dumps, loads, safe_serialize

if TYPE_CHECKING:
    from flujo_client.schemas.faults import SchemaFault
    from flujo_client.schemas.schema import Check

_CAN_CHECK: Final = importlib.util.find_spec("jsonschema_rs") is not None
"""If only the client is installed, workers check the schema."""

INPUT_INVALID: Final = "Input contract validation failed"
OUTPUT_INVALID: Final = "Output contract validation failed"

LONGEST: Final = 300
"""Characters of a refusal's message: checkers repeat the whole value in it."""

_MANY: Final = 10_000
"""Faults that one check lists: many unexpected properties are removed at once, without a new check for each."""

_WAY_OUT: Final = "a contract must be a JSON Schema (2020-12) of an object without references to other documents"


@frozen
class Judgement:
    """A contract's verdict on a value."""

    value: Any
    """The judged value: a copy, as plain data."""
    dropped: Sequence[str] = ()
    """JSON pointers of the properties that were taken out of it."""
    refusal: Mapping[str, Any] | None = None
    """What is wrong; None: the value holds."""


class Contract:
    """A JSON Schema (2020-12) that values must satisfy. `schema` may be the path of a JSON file; `what` names it in errors.

    A value that does not is refused with `error`. Raises ConfigurationError: there is no such file, it is not a schema, or it refers to other
    documents.
    """

    def __init__(self, schema: Mapping[str, Any] | Path, *, what: str, error: str = INPUT_INVALID) -> None:
        self._what, self._error = what, error
        self.schema = self._read(schema)
        self.hash = digest(self.schema)
        if _CAN_CHECK:
            _ = self._check

    @property
    def properties(self) -> dict[str, Any]:
        """Return the schema of each property, by its name, in the schema's order."""
        return dict(self._root.get("properties") or {})

    @property
    def required(self) -> list[str]:
        """Return the required properties, in the schema's order."""
        return list(self._root.get("required") or ())

    @property
    def definitions(self) -> dict[str, Any]:
        """Return the definitions that the properties refer to, under the keywords that hold them."""
        return {key: self.schema[key] for key in ("$defs", "definitions") if key in self.schema}

    def data_in(self, output: Any) -> Any:
        """Read a model's text as JSON where data are required and the text is JSON."""
        if not isinstance(output, str) or "string" in self._check.kinds():
            return output
        try:
            return loads(output.encode())
        except SerializationError:
            return output

    def judge(self, given: Any, *, strict: bool = False) -> Judgement:
        """Fill in a value's defaults in a copy, and validate it. Unexpected properties are dropped if nothing else is wrong, and rejected if `strict`."""
        from flujo_client.schemas.faults import UNEXPECTED, faults, most_specific

        value, dropped = plain(given), list[str]()
        self._fill(value, self.schema)
        while found := faults(self._check, value, _MANY):
            may_go = [each.keyword in UNEXPECTED and not strict for each in found]
            if not all(may_go):
                return Judgement(value, (), self._refusal(given, value, most_specific(found[may_go.index(False) :])[0]))
            innermost_first = sorted(found, key=lambda each: len(each.path), reverse=True)
            dropped += [pointer for each in innermost_first for pointer in _drop(value, each)]
        return Judgement(value, dropped)

    def missing_from(self, given: Any) -> list[str]:
        """Return the required properties that are not given, in the schema's order."""
        return [name for name in self.required if not isinstance(given, Mapping) or name not in given]

    def _refusal(self, given: Any, value: Any, fault: SchemaFault) -> dict[str, Any]:
        lacking = self.missing_from(value) if isinstance(value, dict) else []
        what, path = _short(fault.message), list(fault.path)
        if lacking:  # defaults are filled in: only the others are why
            what, path = f"'{lacking[0]}' is a required property", []
        missing = self.missing_from(given)
        return refused(self._error, what, path, self.required, missing, given, lacks=bool(lacking))

    @functools.cached_property
    def _check(self) -> Check:
        from flujo_client.schemas.schema import Check, UnusableSchema

        try:
            return Check(self.schema)
        except UnusableSchema as wrong:
            raise ConfigurationError(f"{self._what}: {wrong.message}", suggestion=_WAY_OUT) from None

    @property
    def _root(self) -> dict[str, Any]:
        root, _ = self._check.resolved(self.schema, "")
        return root if isinstance(root, dict) else {}

    def _fill(self, value: Any, sub: Any) -> None:
        """Fill in defaults, at every level of the value."""
        sub, _ = self._check.resolved(sub, "")
        if not isinstance(sub, dict):
            return
        if isinstance(value, dict):
            for name, own in (sub.get("properties") or {}).items():
                meant, _ = self._check.resolved(own, "")
                defaults = [each["default"] for each in (own, meant) if isinstance(each, dict) and "default" in each]
                if name in value:
                    self._fill(value[name], own)
                elif defaults:
                    value[name] = copy.deepcopy(defaults[0])
        elif isinstance(value, list) and isinstance(sub.get("items"), dict):
            for each in value:
                self._fill(each, sub["items"])

    def _read(self, given: Mapping[str, Any] | Path) -> dict[str, Any]:
        schema: Any = given
        if isinstance(given, Path):
            try:
                schema = json.loads(given.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                what = f"{self._what}: {given.name} cannot be read as JSON: {error}"
                way_out = "give the path of a JSON Schema, or the schema itself"
                raise ConfigurationError(what, suggestion=way_out) from error
        if not isinstance(schema, Mapping):
            what = f"{self._what} is a {type(schema).__name__}, not a JSON Schema"
            raise ConfigurationError(what, suggestion=_WAY_OUT)
        try:
            written: dict[str, Any] = loads(dumps(dict(schema)))
        except FlujoError as error:
            raise ConfigurationError(f"{self._what} is not JSON: {error.message}", suggestion=_WAY_OUT) from error
        return written


def _drop(value: Any, fault: SchemaFault) -> list[str]:
    """Take the unexpected properties out of a value, in place; return their JSON pointers. Two parts of a schema may name the same one."""
    place = value
    for key in fault.path:
        place = place[key]
    unexpected = [key for key in map(str, fault.rule["unexpected"]) if key in place]
    for key in unexpected:
        del place[key]
    return ["".join(f"/{step(str(each))}" for each in (*fault.path, key)) for key in unexpected]


def _short(message: str) -> str:
    """Shorten a checker's message in the middle: the value comes first in it, and what is wrong with it last."""
    half = LONGEST // 2
    return message if len(message) <= LONGEST else f"{message[:half]} … {message[-half:]}"


def plain(value: Any) -> Any:
    """Copy to plain JSON data, whole, however large it is."""
    return to_jsonable_python(value, bytes_mode="base64", fallback=safe_serialize)


def refused(
    error: str, message: str, path: list[Any], required: list[str], missing: list[str], given: Any, *, lacks: bool
) -> dict[str, Any]:
    """Write a refusal. `lacks`: the reason is that something is missing; otherwise it is the message."""
    correction = f"Please correct {'/'.join(map(str, path)) or 'the input'}: {message}"
    return {
        "success": False,
        "error": error,
        "validation_message": message,
        "path": path,
        "required_fields": required,
        "missing_fields": missing,
        "provided_fields": list(given) if isinstance(given, Mapping) else [],
        "hint": f"Please provide all required fields: {', '.join(missing)}" if lacks else correction,
    }
