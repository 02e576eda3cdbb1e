"""Says why a value was refused, so that a model can act on it (M-098, rule 16): place, expected, found.

It must not repeat more of the value than a few words. In: a value and what the checker and the coercion found; out: a `Refused` whose
path is the first place, and whose text names the first few.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from flujo_worker.aros.check import Check, kind_of
from flujo_worker.aros.outcome import NOT_ALLOWED, SCHEMA, Path, Refused, pointer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import jsonschema_rs

FEW: Final = 4
ROOT: Final = "(root)"
LONGEST: Final = 600
_WORD: Final = 60


def refusal_of(check: Check, value: Any, refusals: Iterable[tuple[Path, str, str]]) -> Refused:
    """Make one refusal of what the schema and the conversions said: what a setting would have allowed comes first."""
    places = [place for error in check.errors(value) for place in _told(error)]
    known = list(refusals)
    rule = known[0][1] if known else SCHEMA
    told = [(path, told) for path, _, told in known] + places or [((), "the value does not hold under the schema")]
    lines = list({path: (path, more) for path, more in reversed(told)}.values())[::-1][:FEW]
    first, said = lines[0]
    rest = "".join(f"; at {pointer_of(path) or ROOT}: {more}" for path, more in lines[1:])
    hint = " (this conversion is not allowed here: write the value in its own type)" if rule == NOT_ALLOWED else ""
    return Refused(rule, f"{said}{hint}{rest}", first, "semantic")


def written(refused: Refused) -> str:
    """Write a refusal as one bounded line that begins with its place."""
    return f"at {pointer_of(refused.path) or ROOT}: {refused.told} [{refused.rule}]"[:LONGEST]


def _told(error: jsonschema_rs.ValidationError, depth: int = 0) -> list[tuple[Path, str]]:
    path: Path = tuple(error.instance_path)
    kind = error.kind.name
    if kind in _WITH_PLACES:
        return _WITH_PLACES[kind](error, path)
    context = getattr(error.kind, "context", None)
    if context and depth < FEW:
        nearest = max(
            context, key=lambda errors: max((len(list(one.instance_path)) for one in errors), default=0) - len(errors)
        )
        return [(path, _sentence(error)), *(place for one in nearest[:2] for place in _told(one, depth + 1))]
    return [(path, _sentence(error))]


def _required(error: jsonschema_rs.ValidationError, path: Path) -> list[tuple[Path, str]]:
    missing = error.kind.as_dict().get("property")
    return [((*path, missing) if isinstance(missing, str) else path, "a required member is missing")]


def _unexpected(error: jsonschema_rs.ValidationError, path: Path) -> list[tuple[Path, str]]:
    keys = error.kind.as_dict().get("unexpected") or []
    return [((*path, str(key)), "this member is not allowed") for key in keys[:FEW]] or [(path, _sentence(error))]


_WITH_PLACES: Final[dict[str, Callable[[Any, Path], list[tuple[Path, str]]]]] = {
    "required": _required,
    "additionalProperties": _unexpected,
    "unevaluatedProperties": _unexpected,
}


def _sentence(error: jsonschema_rs.ValidationError) -> str:
    rule = error.kind.as_dict()
    if "types" in rule:
        return f"expected {' or '.join(rule['types'])}, found {_found(error.instance)}"
    expected = ", ".join(f"{key} {_brief(value)}" for key, value in rule.items() if key not in {"context", "error"})
    return f"expected {expected or error.kind.name}, found {_found(error.instance)}"


def _found(value: Any) -> str:
    kind = kind_of(value)
    return kind if kind in {"object", "array", "null"} else f"{kind} {_brief(value)}"


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _WORD else f"{text[:_WORD]}…"
