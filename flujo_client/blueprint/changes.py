"""Paths in the context, in a document: the items of a map, and the changes that loops and maps make with `init` and `state`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from flujo_client.blueprint.kind import Data
from flujo_client.blueprint.shapes import TEXT, DocumentLocation, Key, ListOf, Table
from flujo_client.blueprint.value_types import Templates
from flujo_client.contract.validation import Finding
from flujo_client.pipeline.compiled_text import TEMPLATE_NAMES, Changes
from flujo_client.pipeline.context_info import is_dotted

_OUTPUT: Final = "output"
_NO_FIELDS: Final = {*TEMPLATE_NAMES, _OUTPUT}


def context_path(given: str) -> str | None:
    """Write it as a dotted path in the context; None if it is not a place there.

    `context.a.b` is the field `a.b`, and so is `a.b`; `steps.x.output` is the output of the step `x` in the context. Braces may be around it.
    """
    path = given.strip()
    is_template = path.startswith("{{") and path.endswith("}}")
    path = path[2:-2].strip() if is_template else path
    first, *rest = path.split(".")
    if first == "steps" and rest[1:2] == [_OUTPUT]:
        path = ".".join(["step_outputs", rest[0], *rest[2:]])
    elif first == "context" and rest:
        path = ".".join(rest)
    elif is_template or first in _NO_FIELDS:
        return None
    return path if is_dotted(path) else None


def field_path(given: str) -> str:
    """Write where a change of the context goes as a dotted path in it: in the words of templates or as it is, `context.a` is `a`."""
    return given.removeprefix("context.")


class ItemsShape:
    description = "a dotted path in the context, such as context.files, or steps.<name>.output"

    def fits(self, value: Any) -> bool:
        return isinstance(value, str)

    def findings(self, value: Any, location: DocumentLocation) -> Iterator[Finding]:
        if context_path(value) is None:
            instead = "to map over a step's output, name the step, or put it into the context with `sink_to`"
            message = f"it is not a path in the context: {instead}"
            yield location.finding("Y-VALUE", message, allowed=f"it takes {self.description}")


STATE: Final = "state"
"""The changes of the context at the end of an iteration, and the name behind the loop's of the step that makes them."""
_CHANGE: Final = ListOf(
    Table(
        {
            "target": Key(TEXT, "A dotted path in the context.", required=True),
            "value": Key(Templates(), "The value to store; texts in it are templates.", required=True),
        },
        "a change of the context",
    )
)
CHANGES_KEYS: Final = Table(
    {
        "set": Key(_CHANGE, "Puts values."),
        "append": Key(_CHANGE, "Appends values to lists, which are created if they are missing."),
        "merge": Key(_CHANGE, "Merges mappings into mappings."),
    },
    "changes of the context",
)


def build_changes(given: Data) -> Changes:
    changes = ((operation, each) for operation in given for each in given[operation])
    return Changes(tuple((operation, field_path(each["target"]), each["value"]) for operation, each in changes))


def write_changes(agent: Changes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for operation, target, value in agent.put:
        found.setdefault(operation, []).append({"target": target, "value": value})
    return found
