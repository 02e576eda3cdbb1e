"""What a rule is that takes values of one kind apart and puts them together again; the tables of rules are in other modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Entries = dict[str, Any]


class EncodingRule(NamedTuple):
    """How the values of one kind are written and read.

    Attributes:
        tag: names the kind on the wire.
        apart: takes a value apart into simpler ones.
        together: makes the value again, from what the reference names and the simpler values.
        owns: set for kinds that need a reference on the wire: returns whether what it names may be used for this kind.
        named: returns that reference for a value; None: it is that of its class.
    """

    tag: str
    apart: Callable[[Any], Entries]
    together: Callable[[Any, Entries], Any]
    owns: Callable[[Any], bool] | None = None
    named: Callable[[Any], str] | None = None


def simple(tag: str, apart: Callable[[Any], Any], together: Callable[[Any], Any]) -> EncodingRule:
    """Make the rule of a kind whose values have one entry."""
    return EncodingRule(tag, lambda value: {"v": apart(value)}, lambda _, entries: together(entries["v"]))
