"""The result of a parse: the value, or where and why not, and what was done on the way.

Values only: nothing here decides. In: what the stages found; out: a `ParseOutcome`, the same on every worker for the same text,
schema and settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

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


class Transform(NamedTuple):
    """One thing that was done to the text or the value.

    Attributes:
        stage: `extract`, `unescape`, `tolerant`, `syntactic`, `semantic` or `custom`, as the seed's events name it.
        name: such as `fence`, `trailing-comma`, `json5` or `str->int`.
        pointer: where in the value; empty for the whole of it.
        before: a bounded view of what was there, for conversions.
        after: what it became.
    """

    stage: str
    name: str
    pointer: str = ""
    before: Any = None
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
    """The value of a text that the schema rejects: an output processor may still make it fit.

    Attributes:
        value: the decoded value, with the conversions that could be made.
        transforms: the repairs and conversions, in order.
    """

    value: Any
    transforms: tuple[Transform, ...] = ()


class ParseOutcome(NamedTuple):
    """The answer to one text.

    Attributes:
        ok: whether `value` is set and satisfies the schema.
        value: the decoded value; None when rejected.
        feedback: for the model's next try: place, expected, found. None when accepted.
        rule: why it was rejected, one of this module's words.
        stage: the last stage that had to act; `parse` if the text needed no repair.
        transforms: the repairs and conversions, in order; empty if the text needed none.
        branches: the index of the chosen branch, by the pointer of the union.
        elapsed_s: seconds by the caller's clock; 0.0 without one.
        pointer: the place of `feedback`, as a JSON pointer.
        preview: of a tolerant repair.
        unfit: the value of a rejected text, if only the schema rejected it and no other part of the text could be meant.
    """

    ok: bool
    value: Any = None
    feedback: str | None = None
    rule: str | None = None
    stage: str = "parse"
    transforms: tuple[Transform, ...] = ()
    branches: Mapping[str, int] = NO_BRANCHES
    elapsed_s: float = 0.0
    pointer: str | None = None
    preview: Preview | None = None
    unfit: Unfit | None = None


class StageRefused(Exception):
    """A stage cannot continue. Never leaves the package: it becomes an outcome.

    Attributes:
        rule: one of this module's words.
        message: what was expected and found, for the model.
        path: keys and indexes of the place.
        stage: which stage refused.
        unfit: what was read, if only the schema refused it.
    """

    unfit: Unfit | None = None

    def __init__(self, rule: str, message: str, path: Path = (), stage: str = "syntactic") -> None:
        super().__init__(message)
        self.rule = rule
        self.message = message
        self.path = path
        self.stage = stage

    def in_words(self) -> StageRefused:
        """Return the refusal with its message; a message that is costly to write is written only here."""
        return self


def pointer_of(path: Path) -> str:
    """Write a path as a JSON pointer (RFC 6901)."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)
