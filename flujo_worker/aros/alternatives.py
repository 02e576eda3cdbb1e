"""Which alternatives of a union a value can be meant for, at a glance: by its type, its required members, and its tag.

Pure; it does not look below the value's own members. In: alternatives and a value; out: those that are worth a look.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flujo_client.schemas.parts import Part, tags_of, telling, types_of
from flujo_client.schemas.schema import Check
from flujo_worker.aros.convert import fits
from flujo_worker.aros.decode import same


class Alternatives:
    """The alternatives of one union.

    Args:
        check: the schema.
        parts: the alternatives, in order.

    Attributes:
        tags: members that distinguish the alternatives: each alternative that is an object names other values for it.
    """

    def __init__(self, check: Check, parts: Sequence[Part]) -> None:
        self.parts = list(parts)
        self._subs = [check.resolved(*each)[0] for each in self.parts]
        self._tags = [tags_of(sub) for sub in self._subs]
        objects = [sub for sub in self._subs if isinstance(sub, dict)]
        objects = [sub for sub in objects if sub.get("type") == "object" or "properties" in sub]
        self.tags = telling(objects) if len(objects) > 1 else ()

    def may_hold(self, value: Any) -> list[int]:
        """List those that may hold for a value as it is."""
        return [index for index, sub in enumerate(self._subs) if self._may_hold(index, sub, value)]

    def meant(self, value: Any) -> list[int]:
        """List those that a value may be converted to: the one that its tag names, or all where it has none that names one."""
        every = list(range(len(self.parts)))
        if not isinstance(value, dict):
            return every
        for name in self.tags:
            named = [index for index in every if name in value and _is_one_of(value[name], self._tags[index].get(name))]
            if named:
                return named
        return every

    def _may_hold(self, index: int, sub: Any, value: Any) -> bool:
        if not isinstance(sub, dict):
            return bool(sub)
        types = types_of(sub)
        if types and not any(fits(value, kind) for kind in types):
            return False
        if not isinstance(value, dict):
            return True
        required, tags = sub.get("required") or (), self._tags[index]
        return all(name in value for name in required) and all(
            _is_one_of(value[name], tag) for name, tag in tags.items() if name in value
        )


def _is_one_of(value: Any, tag: list[Any] | None) -> bool:
    return tag is not None and any(same(value, each) for each in tag)
