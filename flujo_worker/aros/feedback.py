"""Says why a value was refused, so that a model can act on it: place, expected, found, and of the value a few words at most."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from flujo_client.schemas.faults import UNEXPECTED, UNKNOWN_RULE, SchemaFault, faults, most_specific
from flujo_client.schemas.parts import kind_of
from flujo_client.schemas.schema import Check
from flujo_worker.aros.outcome import NOT_ALLOWED, SCHEMA, Path, Refusal, StageRefused, Transform, pointer_of

FEW: Final = 4
ROOT: Final = "(root)"
LONGEST: Final = 600
_WORD: Final = 60


class Misfit(StageRefused):
    """A value that does not match the schema. Place and reason are computed only for the rejection that is reported, not for every try.

    The value is what was read with the repairs and conversions `done`; `places` are where the type behind the schema refuses it too.
    """

    def __init__(
        self, check: Check, value: Any, refusals: list[Refusal], done: tuple[Transform, ...], places: Sequence[Path]
    ) -> None:
        refusals = [each for each in refusals if _is_near_any(each[0], places)] or refusals
        super().__init__(refusals[0][1] if refusals else SCHEMA, "the value does not match the schema", (), "semantic")
        self.check, self.value, self.refusals, self.done, self.places = check, value, refusals, done, places

    def in_words(self) -> StageRefused:
        """Name the first few places: what a setting would have allowed comes first."""
        messages = [(path, message) for path, _, message in self.refusals]
        messages += [place for fault in most_specific(faults(self.check, self.value)) for place in _places(fault)]
        messages = [each for each in messages if _is_near_any(each[0], self.places)] or messages
        lines = list({path: (path, more) for path, more in reversed(messages)}.values())[::-1]
        first, message = lines[0]
        rest = "".join(f"; at {pointer_of(path) or ROOT}: {more}" for path, more in lines[1:FEW])
        hint = " (this conversion is not allowed here: write the value in its own type)"
        hint = hint if self.rule == NOT_ALLOWED else ""
        refusal = StageRefused(self.rule, f"{message}{hint}{rest}", first, self.stage)
        refusal.unfit, refusal.what, refusal.more = self.unfit, message, len(lines) - 1
        return refusal


def _is_near_any(path: Path, places: Sequence[Path]) -> bool:
    """Return whether a path is one of the places, inside one, or around one."""
    return any(path[: len(place)] == place[: len(path)] for place in places)


def written(refused: StageRefused) -> str:
    """Write a refusal as one bounded line that begins with its place."""
    return f"at {pointer_of(refused.path) or ROOT}: {refused.message} [{refused.rule}]"[:LONGEST]


def _places(fault: SchemaFault) -> list[tuple[Path, str]]:
    if fault.keyword == "required":
        missing = fault.rule.get("property")
        return [((*fault.path, missing) if isinstance(missing, str) else fault.path, "a required member is missing")]
    if fault.keyword in UNEXPECTED and fault.rule.get("unexpected"):
        return [((*fault.path, str(key)), "this member is not allowed") for key in fault.rule["unexpected"][:FEW]]
    return [(fault.path, _sentence(fault))]


def _sentence(fault: SchemaFault) -> str:
    if fault.keyword == UNKNOWN_RULE:
        return fault.message
    if "types" in fault.rule:
        return f"expected {' or '.join(fault.rule['types'])}, found {_found(fault.found)}"
    if fault.branch is not None:
        return f"expected {fault.keyword} (nearest is {_cut(fault.branch.name)}), found {_found(fault.found)}"
    rule = {key: value for key, value in fault.rule.items() if key not in {"context", "error"}}
    expected = ", ".join(f"{key} {_brief(value)}" for key, value in rule.items())
    return f"expected {expected or fault.keyword}, found {_found(fault.found)}"


def _found(value: Any) -> str:
    kind = kind_of(value)
    return kind if kind in {"object", "array", "null"} else f"{kind} {_brief(value)}"


def _brief(value: Any) -> str:
    return _cut(json.dumps(value, ensure_ascii=False, default=str))


def _cut(text: str) -> str:
    return text if len(text) <= _WORD else f"{text[:_WORD]}…"
