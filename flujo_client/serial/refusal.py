"""The exception for a value that cannot be serialised: it collects its path while the walk unwinds.

So the walk, which is the hot path, maintains neither paths nor a set of parents.
"""

from __future__ import annotations

from typing import Any

from flujo_client.errors import SerializationError


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
                return SerializationError(
                    f"refers back to {seen[id(holder)]}: cycles cannot be serialized",
                    path=path,
                    suggestion="hold an id instead of the object",
                )
            seen[id(holder)] = path
            path += step
        return None
