"""Changes of the context in a document: `init` and `state` of loops and maps."""

from __future__ import annotations

from typing import Any, Final

from flujo_client.blueprint.items import field_path
from flujo_client.blueprint.kind import Data
from flujo_client.blueprint.shapes import TEXT, Key, ListOf, Table
from flujo_client.blueprint.value_types import Templates
from flujo_client.pipeline.compiled_text import Changes

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
    """Make the agent that changes the context so."""
    return Changes(
        tuple(
            (operation, field_path(each["target"]), each["value"]) for operation in given for each in given[operation]
        )
    )


def write_changes(agent: Changes) -> dict[str, Any]:
    """Write changes of the context."""
    found: dict[str, Any] = {}
    for operation, target, value in agent.put:
        found.setdefault(operation, []).append({"target": target, "value": value})
    return found
