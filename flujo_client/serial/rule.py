"""The rule that takes values of one kind apart and puts them together again, and its error for other values; the tables are in other modules.

A refusal collects its path while the walk unwinds. So the walk, which is the hot path, maintains neither paths nor a set of parents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from flujo_client.errors import SerializationError

Entries = dict[str, Any]


class EncodingRule(NamedTuple):
    """The rule by which the values of one kind are written and read."""

    tag: str
    """The name of the kind on the wire."""
    apart: Callable[[Any], Entries]
    """A function that takes a value apart into simpler values."""
    together: Callable[[Any, Entries], Any]
    """A function that makes the value again from the referenced class and the simpler values."""
    owns: Callable[[Any], bool] | None = None
    """For kinds that need a reference on the wire, a function that returns whether a referenced class belongs to this kind."""
    named: Callable[[Any], str] | None = None
    """A function that returns the reference for a value; None: the reference of its class."""


def simple(tag: str, apart: Callable[[Any], Any], together: Callable[[Any], Any]) -> EncodingRule:
    """Make the rule of a kind whose values have one entry."""
    return EncodingRule(tag, lambda value: {"v": apart(value)}, lambda _, entries: together(entries["v"]))


def step_to(key: Any) -> str:
    """Write a mapping's key as a step of a path."""
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r:.80}]"


class EncodingRefused(Exception):
    """While the walk unwinds, it collects the path: each holder with the step taken from it, innermost first."""

    def __init__(self, message: str, suggestion: str | None = None, *, too_deep: bool = False) -> None:
        super().__init__(message)
        self.suggestion = suggestion
        self.too_deep = too_deep
        self.trail: list[tuple[Any, str]] = []

    def past(self, holder: Any, step: str = "") -> None:
        self.trail.append((holder, step))

    def as_error(self, root: str) -> SerializationError:
        if self.too_deep and (cycle := self._cycle(root)):
            return cycle
        path = root + "".join(step for _, step in reversed(self.trail))
        return SerializationError(str(self), path=path, suggestion=self.suggestion, cause=self.__cause__)

    def _cycle(self, root: str) -> SerializationError | None:
        """Find the cycle. The depth limit catches every cycle; the trail then holds the same holder twice."""
        seen: dict[int, str] = {}
        path = root
        for holder, step in reversed(self.trail):
            if id(holder) in seen:
                what = f"refers back to {seen[id(holder)]}: cycles cannot be serialized"
                return SerializationError(what, path=path, suggestion="hold an id instead of the object")
            seen[id(holder)] = path
            path += step
        return None
