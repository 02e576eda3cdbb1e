"""Second names of a class's fields: taken when it is made, read-only afterwards (C-17)."""

from __future__ import annotations

from functools import wraps
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T", bound=type)


def aliases(**names: str) -> Callable[[T], T]:
    """Let fields be given and read under other names too: `aliases(body="loop_body_pipeline")`.

    What is made raises TypeError when it is given a field under both its names.
    """

    def change(cls: T) -> T:
        first = cls.__init__  # type: ignore[misc]  # the class's own, which the names are put before

        @wraps(first)
        def init(self: Any, *args: Any, **given: Any) -> None:
            for other in names.keys() & given.keys():
                if names[other] in given:
                    raise TypeError(f"{cls.__name__} was given '{names[other]}' and its other name '{other}'")
                given[names[other]] = given.pop(other)
            first(self, *args, **given)

        cls.__init__ = init  # type: ignore[misc]
        for other, name in names.items():
            setattr(cls, other, property(attrgetter(name), doc=f"The same as `{name}`."))
        return cls

    return change
