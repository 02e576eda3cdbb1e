"""The result of a parse: the value, or where and why not, and what was done on the way. It depends on text, schema and settings alone."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from flujo_client.schemas.parts import step

CUT: Final = "cut"
"""The text ends before the value does."""
TWO_READINGS: Final = "two-readings"
"""A part of the text can be read as more than one value."""
SEVERAL_VALUES: Final = "several-values"
"""Different parts of the text match the schema, and nothing says which of them is the answer."""
NOT_ALLOWED: Final = "not-whitelisted"
"""A conversion would settle it that `coercion.allow` does not list."""
LOSSY: Final = "lossy"
"""A repair would drop or invent something."""
LIMIT: Final = "limit"
"""Too deep, too long, too many digits, or a schema that refers to itself without end."""
NO_JSON: Final = "no-json"
"""Nothing in the text looks like the value asked for."""
NOT_JSON: Final = "not-json"
"""There is a candidate, but it cannot be read at this level."""
SCHEMA: Final = "schema"
"""The value was read, and the schema refuses it."""
BAD_SCHEMA: Final = "bad-schema"
"""The schema itself cannot be compiled: every text is refused."""

NO_BRANCHES: Final[Mapping[str, int]] = MappingProxyType({})


Path = tuple[str | int, ...]
Refusal = tuple[Path, str, str]
"""A conversion that would settle it and was not made: path, rule, and message."""


class Transform(NamedTuple):
    """One thing that was done to the text or the value."""

    stage: str
    """`extract`, `unescape`, `tolerant`, `syntactic`, `semantic` or `custom`, as the seed's events name it."""
    name: str
    """Such as `fence`, `trailing-comma`, `json5` or `str->int`."""
    pointer: str = ""
    """Where in the value; empty for the whole of it."""
    before: Any = None
    """A bounded view of what was there, for conversions."""
    after: Any = None

    def attributes(self) -> dict[str, Any]:
        """Return the transform as an event's attributes: `from` and `to` only for conversions."""
        data = {"stage": self.stage, "name": self.name, "pointer": self.pointer}
        return data if self.stage != "semantic" else {**data, "from": self.before, "to": self.after}


class Preview(NamedTuple):
    """A bounded look at a repair: the text before it, the value's text after it."""

    before: str
    after: str


class Unfit(NamedTuple):
    """The value of a text that the schema rejects: an output processor may still make it fit."""

    value: Any
    """The decoded value, with the conversions that could be made."""
    transforms: tuple[Transform, ...] = ()


class ParseOutcome(NamedTuple):
    """The answer to one text."""

    ok: bool
    """Whether `value` is set and satisfies the schema."""
    value: Any = None
    feedback: str | None = None
    """For the model's next try: place, expected, found. None when accepted."""
    rule: str | None = None
    """Why it was rejected, one of this module's words."""
    stage: str = "parse"
    """The last stage that had to act; `parse` if the text needed no repair."""
    transforms: tuple[Transform, ...] = ()
    """The repairs and conversions, in order; empty if the text needed none."""
    branches: Mapping[str, int] = NO_BRANCHES
    """The index of the chosen branch, by the pointer of the union."""
    elapsed_s: float = 0.0
    """Seconds by the caller's clock; 0.0 without one."""
    pointer: str | None = None
    """The place of `feedback`, as a JSON pointer."""
    preview: Preview | None = None
    """Of a tolerant repair."""
    unfit: Unfit | None = None
    """The value of a rejected text, if only the schema rejected it and no other part of the text could be meant."""
    what: str = ""
    """The expectation at `pointer`, and the value that was found there; `more` is the number of further places."""
    more: int = 0

    @property
    def details(self) -> dict[str, Any]:
        """Return where and why it was rejected, as the details of its error."""
        return {"rule": self.rule or SCHEMA, "pointer": self.pointer or "", "what": self.what, "more": self.more}


class StageRefused(Exception):
    """A stage cannot continue, by one of this module's rules, at a path of keys and indexes. It becomes an outcome in this package."""

    unfit: Unfit | None = None
    """What was read, if only the schema refused it."""
    more = 0
    """The number of further places that were refused."""

    def __init__(self, rule: str, message: str, path: Path = (), stage: str = "syntactic") -> None:
        super().__init__(message)
        self.rule = rule
        self.message = self.what = message
        self.path = path
        self.stage = stage

    def in_words(self) -> StageRefused:
        """Return the refusal with its message; a message that is costly to write is written only here."""
        return self


def pointer_of(path: Path) -> str:
    """Write a path as a JSON pointer (RFC 6901)."""
    return "".join(f"/{step(str(part))}" for part in path)
