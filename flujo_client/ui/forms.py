"""From a JSON Schema to the fields of a form, and from a filled-in form to the value. Pure.

A field's name in the form is its place in the schema, such as `f-2-0`: names of properties may be any text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

Kind = Literal["text", "long", "integer", "number", "date", "flag", "choice", "const", "lines", "group", "json"]
Schema = Mapping[str, Any]

MOST_FIELDS: Final = 60
MOST_REFERENCES: Final = 8
_LONG: Final = 120
"""A text that may have more characters gets several lines."""
_SIMPLE: Final[Mapping[str, Kind]] = {"integer": "integer", "number": "number", "boolean": "flag"}
_UNDRAWABLE: Final = {"allOf", "oneOf", "anyOf", "not", "if", "patternProperties", "dependentSchemas"}
_WANTED: Final = {"integer": "a whole number", "number": "a number", "flag": "yes or no", "json": "JSON"}


class FormError(ValueError):
    """A field that cannot be read, in words."""


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of a form.

    Attributes:
        name: its name in the form.
        key: the property that it fills; empty for the whole answer.
        default: what the field shows at first.
        choices: the allowed values, of which the form sends the number; for `const` the only one.
        bounds: further attributes of the HTML element.
        fields: the fields of a `group`.
    """

    name: str
    key: str
    kind: Kind
    label: str
    hint: str = ""
    default: str = ""
    is_required: bool = True
    is_nullable: bool = False
    choices: tuple[Any, ...] = ()
    bounds: tuple[tuple[str, Any], ...] = ()
    fields: tuple[FormField, ...] = ()


def form_of(schema: Any) -> FormField:
    """Return the form for a schema: a group for an object, required fields first, else in the schema's order.

    What cannot be drawn is a field for JSON.
    """
    return _field("f", "", schema, schema if isinstance(schema, dict) else {}, is_required=True)


def read_form(field: FormField, form: Mapping[str, Any]) -> Any:
    """Return the value that a form was filled in with; raises FormError, which names the field."""
    text = str(form.get(field.name, "")).replace("\r\n", "\n")
    if field.kind == "group":
        given = (each for each in field.fields if each.is_required or not _is_empty(each, form))
        return {each.key: read_form(each, form) for each in given}
    if field.kind == "const":
        return field.choices[0]
    if field.is_nullable and not text:
        return None
    try:
        return _value(field, text)
    except (ValueError, LookupError):
        raise FormError(f"{field.label}: must be {_WANTED.get(field.kind, 'chosen')}") from None


def _is_empty(field: FormField, form: Mapping[str, Any]) -> bool:
    return all(_is_empty(each, form) for each in field.fields) if field.fields else not form.get(field.name)


def _value(field: FormField, text: str) -> Any:
    match field.kind:
        case "integer":
            return int(text)
        case "number" | "json":
            value = orjson.loads(text)
            if field.kind == "number" and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise ValueError(text)
            return value
        case "flag":
            return {"true": True, "false": False}[text]
        case "choice":
            return {str(place): each for place, each in enumerate(field.choices)}[text]
        case "lines":
            return [line for line in text.split("\n") if line.strip()]
    return text


def _field(name: str, key: str, schema: Any, whole: Schema, *, is_required: bool) -> FormField:
    shape, is_nullable = _resolved(schema, whole)
    kind, rest = _kind(name, shape, whole)
    label = str(shape.get("title") or key.replace("_", " ").strip() or "Answer")
    hint, default = str(shape.get("description", "")), _shown(kind, shape.get("default"), rest.get("choices", ()))
    return FormField(name, key, kind, label, hint, default, is_required, is_nullable, **rest)


def _kind(name: str, shape: Schema, whole: Schema) -> tuple[Kind, dict[str, Any]]:
    wanted, properties, most = shape.get("type"), shape.get("properties"), shape.get("maxLength")
    if isinstance(wanted, list) and "boolean" in wanted:
        wanted = "boolean"
    if "const" in shape:
        return "const", {"choices": (shape["const"],)}
    if isinstance(shape.get("enum"), list) and shape["enum"]:
        return "choice", {"choices": tuple(shape["enum"])}
    if not isinstance(wanted, str) or _UNDRAWABLE & shape.keys():
        return "json", {}
    if wanted in _SIMPLE:
        bounds = {"min": shape.get("minimum"), "max": shape.get("maximum")}
        return _SIMPLE[wanted], {"bounds": tuple((side, each) for side, each in bounds.items() if each is not None)}
    if wanted == "string" and shape.get("format") == "date":
        return "date", {}
    if wanted == "string":
        is_short = "format" in shape or (isinstance(most, int) and most <= _LONG)
        return "text" if is_short else "long", {"bounds": (("maxlength", most),) if isinstance(most, int) else ()}
    if wanted == "array" and _kind(name, _resolved(shape.get("items"), whole)[0], whole)[0] in ("text", "long"):
        return "lines", {}
    is_group = wanted == "object" and isinstance(properties, dict) and 0 < len(properties) <= MOST_FIELDS
    return ("group", {"fields": _fields(name, shape, whole)}) if is_group and name.count("-") <= 1 else ("json", {})


def _fields(name: str, shape: Schema, whole: Schema) -> tuple[FormField, ...]:
    required = shape.get("required")
    needed = set(map(str, required)) if isinstance(required, list) else set()
    properties = enumerate(shape["properties"].items())
    fields = [_field(f"{name}-{n}", key, sub, whole, is_required=key in needed) for n, (key, sub) in properties]
    return tuple(sorted(fields, key=lambda field: not field.is_required))


def _resolved(schema: Any, whole: Schema) -> tuple[Schema, bool]:
    """Follow references, and take null off; return the schema, and whether it allows null."""
    shape, is_nullable = (schema if isinstance(schema, dict) else {}), False
    for _ in range(MOST_REFERENCES):
        wanted, either = shape.get("type"), shape.get("anyOf")
        if isinstance(shape.get("$ref"), str):
            shape = {**_at(whole, shape["$ref"]), **{name: each for name, each in shape.items() if name != "$ref"}}
        elif isinstance(either, list) and len(either) == 2 and {"type": "null"} in either:  # noqa: PLR2004 - null and another
            other = next((each for each in either if isinstance(each, dict) and each != {"type": "null"}), {})
            shape, is_nullable = {**other, **{name: each for name, each in shape.items() if name != "anyOf"}}, True
        elif isinstance(wanted, list) and len(wanted) == 2 and "null" in wanted:  # noqa: PLR2004
            shape, is_nullable = {**shape, "type": next((each for each in wanted if each != "null"), "null")}, True
        else:
            return shape, is_nullable
    return {}, False


def _at(whole: Schema, reference: str) -> Schema:
    found: Any = whole if reference.startswith("#/") else {}
    for part in reference[2:].split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _shown(kind: Kind, value: Any, choices: tuple[Any, ...]) -> str:
    if value is None:
        return ""
    if kind == "choice":
        return next((str(place) for place, each in enumerate(choices) if each == value), "")
    if kind == "lines" and isinstance(value, list):
        return "\n".join(map(str, value))
    return value if isinstance(value, str) and kind != "json" else json.dumps(value, ensure_ascii=False, default=str)
