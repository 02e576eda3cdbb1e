"""Python types and their schemas: the schema of a type, its final verdict on a value, and the identity of a schema. Only JSON is read here.

A verdict is described so that the next attempt can act on it: each place, what was expected and what was found, in a few words, without what is under
a secret's name.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, Final

import orjson
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import ErrorDetails

from flujo_client.errors import AgentIOValidationError
from flujo_client.redact import redact_tree
from flujo_client.schemas.ambiguity import ambiguity, may_be_ambiguous
from flujo_client.schemas.fail_fast import fail_fast_json
from flujo_client.serial import digest, safe_serialize
from flujo_worker.aros import decode as strict
from flujo_worker.aros.decode import decode
from flujo_worker.aros.outcome import CUT, LIMIT, SCHEMA, pointer_of

try:
    import msgspec
except ImportError:  # an extra
    msgspec = None  # type: ignore[assignment]

Schema = Mapping[str, Any]

LONGEST: Final = 600
_WORD: Final = 60
_SENTENCE: Final = 160
_NOT_STRUCTURED: Final = (str, bytes, Any, None, object, type(None))
_NAMED_SCHEMAS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMAS: Final = (
    *("items", "prefixItems", "additionalProperties", "contains", "propertyNames", "unevaluatedItems"),
    *("unevaluatedProperties", "not", "if", "then", "else", "allOf", "anyOf", "oneOf"),
)


def structured_type(agent: Any) -> Any:
    """Find the type an agent declares for its output: `output_type`, else its return annotation; None for text and the undeclared."""
    declared = getattr(agent, "output_type", None) or _annotated(agent)
    return None if any(declared is each for each in _NOT_STRUCTURED) or not _is_type(declared) else declared


@functools.lru_cache(maxsize=256)
def adapter_of(output_type: Any) -> TypeAdapter[Any] | None:
    """Make the validator of a type; None for what pydantic cannot validate."""
    try:
        return TypeAdapter(output_type)
    except (PydanticUserError, TypeError):
        return None


@functools.lru_cache(maxsize=256)
def schema_of(output_type: Any) -> dict[str, Any] | None:
    """Derive the schema that texts are checked by, if a type has one; without `format`s, for the type takes more than RFC 3339."""
    adapter = adapter_of(output_type)
    try:
        written = msgspec.json.schema(output_type) if _is_struct(output_type) else adapter and adapter.json_schema()
        derived: dict[str, Any] = without_formats(written or {})
    except (PydanticUserError, ValueError):
        return None
    return derived or None


def validated(text: str, output_type: Any) -> Any:
    """Read JSON into a type, or as it is where there is none; raises AgentIOValidationError when the type refuses it."""
    if output_type is None:
        return decode(text)
    if _is_struct(output_type):
        try:
            return msgspec.json.decode(text, type=output_type)
        except msgspec.ValidationError as error:
            raise AgentIOValidationError(f"{error} [{SCHEMA}]"[:LONGEST], rule=SCHEMA) from None
    adapter = adapter_of(output_type)
    if adapter is None:
        return decode(text)
    if ambiguous := _ambiguous(text, output_type):
        raise AgentIOValidationError(f"{ambiguous} [{LIMIT}]", rule=LIMIT)
    try:
        fail_fast_json(output_type, text)
        return adapter.validate_json(text)
    except ValidationError as error:
        raise misfit(error, text, is_cut=False) from None


def _is_struct(output_type: Any) -> bool:
    return msgspec is not None and isinstance(output_type, type) and issubclass(output_type, msgspec.Struct)


def decoded(text: str, output_type: Any) -> Any:
    """Take the typed fast path: decode strictly, straight into the type; raises ValueError where that cannot be done."""
    if _is_struct(output_type):
        return msgspec.json.decode(text, type=output_type)
    adapter = adapter_of(output_type)
    if adapter is None:
        raise ValueError("no type to decode into")
    if ambiguous := _ambiguous(text, output_type):
        raise ValueError(ambiguous)
    fail_fast_json(output_type, text, strict=True)
    return adapter.validate_json(text, strict=True)


def _ambiguous(text: str, output_type: Any) -> str | None:
    return ambiguity(output_type, decode(text)) if may_be_ambiguous(output_type) else None


def schema_hash(schema: Schema | None) -> str | None:
    """Return the SHA-256 of a schema's canonical JSON, in hex; None without a schema."""
    return None if schema is None else digest(dict(schema))


def _annotated(agent: Any) -> Any:
    for target in (getattr(agent, "run", None), agent):
        try:
            hints = typing.get_type_hints(target)
        except (AttributeError, NameError, TypeError):
            continue
        if "return" in hints:
            return hints["return"]
    return None


def _is_type(declared: Any) -> bool:
    is_one = isinstance(declared, type) or typing.get_origin(declared) is not None
    return is_one and isinstance(declared, Hashable)


def without_formats(schema: Any) -> Any:
    """Leave every `format` out of a schema that was derived from a Python type: pydantic judges dates and addresses, and takes naive datetimes."""
    return changed(schema, lambda each: {name: value for name, value in each.items() if name != "format"})


def changed(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Change a schema and every schema inside it; values that only look like one, such as a default, stay."""
    if not isinstance(schema, dict):
        return schema
    return change({name: _within(name, value, change) for name, value in schema.items()})


def _within(name: str, value: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    if name in _NAMED_SCHEMAS and isinstance(value, dict):
        return {key: changed(each, change) for key, each in value.items()}
    if name in _SCHEMAS:
        return [changed(each, change) for each in value] if isinstance(value, list) else changed(value, change)
    return value


def misfit(error: ValidationError, output: Any, *, is_cut: bool) -> AgentIOValidationError:
    """Describe an output, JSON text or data, that does not fit the agent's type. Raise it `from None`: pydantic's own text repeats the whole output."""
    data = next(iter(strict.decoded(output)), None) if isinstance(output, str) else output
    found = error.errors(include_url=False, include_context=False)
    places = [_pointer(each, data) for each in found]
    messages = [_message(each) for each in found]
    lines = dict.fromkeys(f"at {place or '(root)'}: {message}" for place, message in zip(places, messages, strict=True))
    rule = CUT if is_cut else SCHEMA
    way_out = "name the shape in the prompt, allow a conversion in the step's `processing`, or widen the output type"
    if is_cut:
        way_out = "raise the step's max_tokens: the answer was cut at the token limit"
    where: dict[str, Any] = {"pointer": places[0], "what": messages[0], "more": len(lines) - 1}
    return AgentIOValidationError(_bounded(lines), rule=rule, suggestion=way_out, **where)


def _message(each: ErrorDetails) -> str:
    expected = _short(each["msg"].replace("Input should be ", "expected ", 1), _SENTENCE)
    if each["type"] == "missing":
        return "a required member is missing"
    secret = each["loc"][-1] if each["loc"] else ""
    found = orjson.dumps(redact_tree(safe_serialize(each["input"]), secret)).decode()
    return f"{expected}, found {_short(found, _WORD)}"


def _pointer(each: ErrorDetails, data: Any) -> str:
    place = real_place(each["loc"], data)
    is_known = each["type"] != "missing" or place != real_place(each["loc"][:-1], data)
    return pointer_of(place if is_known else (*place, each["loc"][-1]))


def real_place(place: tuple[int | str, ...], data: Any) -> tuple[int | str, ...]:
    """Return a place in data, without the names of union branches and functions that pydantic puts between."""
    steps: list[int | str] = []
    for step in place:
        is_index = isinstance(data, list) and isinstance(step, int) and step < len(data)
        if is_index or (isinstance(data, dict) and step in data):
            data = data[step]
            steps.append(step)
    return tuple(steps)


def _bounded(lines: Collection[str]) -> str:
    """Join as many lines as there is room for, and append how many were left out."""
    kept: list[str] = []
    room = LONGEST
    for line in lines:
        room -= len(line) + len("; ")
        if kept and room < 0:
            break
        kept.append(line)
    more = len(lines) - len(kept)
    return _short("; ".join(kept), LONGEST) + (f"; and {more} more" if more else "")


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
