"""Conditionals: a function chooses which one of several pipelines runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

from flujo_client.pipeline.container import Container, aliases, names_findings
from flujo_client.pipeline.context_info import ContextInfo
from flujo_client.pipeline.pipeline import Body
from flujo_client.plan import kinds

DEFAULT = "default"


@aliases(condition="condition_callable")
@dataclass(frozen=True, eq=False, kw_only=True)
class ConditionalStep(Container):
    """Run the branch whose key a condition returns. All functions can be async.

    Args:
        condition_callable: `(output, context) -> key`; alias `condition`.
        branches: what can run, by a str, bool or int. See `resolve_key`.
        default_branch_pipeline: runs when no branch has the key; without it the step fails.
        branch_input_mapper: `(input, context)`, returns the branch's input.
        branch_output_mapper: `(output, key, context)`, returns the output. A parameter `original_input` gets the conditional's input.
    """

    spec = kinds.CONDITIONAL
    roles: ClassVar = {
        "condition": ("condition_callable", "output, context"),
        "branch_input": ("branch_input_mapper", "input, context"),
        "branch_output": ("branch_output_mapper", "output, key, context"),
    }

    condition_callable: Callable[..., Any]
    branches: Mapping[str | bool | int, Body] | Mapping[str, Body] | Mapping[bool, Body] | Mapping[int, Body]
    default_branch_pipeline: Body | None = None
    branch_input_mapper: Callable[..., Any] | None = None
    branch_output_mapper: Callable[..., Any] | None = None

    def bodies(self) -> dict[str, Body]:
        paths = {_written(key): body for key, body in _items(self.branches)}
        return paths if self.default_branch_pipeline is None else paths | {DEFAULT: self.default_branch_pipeline}

    def rules(self) -> dict[str, Any]:
        keys = {_written(key): _sort(key) for key, _ in _items(self.branches)}
        return super().rules() | {"keys": keys, "default": self.default_branch_pipeline is not None}

    def findings(self, place: ContextInfo) -> Iterator[str]:
        yield from super().findings(place)
        if not self.bodies():
            yield f"branches must be a mapping that is not empty, got a {type(self.branches).__name__}"
        keys = [key for key, _ in _items(self.branches)]
        for key in keys:
            if _sort(key) is None:
                yield f"branch {str(key)[:40]!r}: a key must be a str, a bool or an int, got a {type(key).__name__}"
        yield from names_findings("branch", map(_written, keys))
        if self.default_branch_pipeline is not None and DEFAULT in keys:
            yield f"branch '{DEFAULT}': this name is reserved for the default branch"


def resolve_key(rules: Mapping[str, Any], value: Any) -> str | None:
    """Find the body's key that a condition's answer selects, by a conditional's rules; None: the default is used.

    An answer selects a key of its own type: 1 is not True, and neither is "1" or "true". As the only exception, True and False also select
    the keys "true" and "false". An enum's member selects its value.
    """
    text, sort = _written(value), _sort(value)
    meant = (sort, "str") if sort == "bool" else (sort,)
    return text if sort is not None and rules["keys"].get(text) in meant else None


def plain_key(key: Any) -> Any:
    """Return an enum member's value, all else as it is."""
    return key.value if isinstance(key, Enum) else key


def _written(key: Any) -> str:
    key = plain_key(key)
    return str(key).lower() if isinstance(key, bool) else str(key)


def _sort(key: Any) -> str | None:
    key = plain_key(key)
    return next((each.__name__ for each in (bool, int, str) if isinstance(key, each)), None)


def _items(branches: Any) -> list[tuple[Any, Any]]:
    return list(branches.items()) if isinstance(branches, Mapping) else []
