"""The SQL statements, one file each, read once.

In a file a parameter is written `%(name)s`, and may be there several times. Postgres gets numbers: psycopg would convert names to numbers
too, but caches that only for short statements, and the one that merges a tree is longer; parsing it each time cost a millisecond.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from flujo_client.sql_files import without_comments, written

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

Connection: TypeAlias = "psycopg.Connection[dict[str, Any]]"
"""A connection that gives rows as mappings, and whose cursors take `$1`, `$2` and so on."""
HOME: Final = "flujo_worker.store"
CLIENT: Final = "flujo_client.gateway"
"""The packages whose statements client and worker both execute."""
UNDONE: Final = "FJ001"
"""The SQLSTATE of flujo_undo(), by which a statement rolls itself back if it cannot do all of its work."""
_IN_A_GROUP: Final = " SKIP LOCKED -- in a group"
_PARAMETER = re.compile(r"%\((\w+)\)s")
_CAST = re.compile(r"%\((\w+)\)s::(\w+(?:\[\])?)")


class Statement(NamedTuple):
    """A statement with `$1`, `$2` and so on, and their names."""

    text: bytes
    names: tuple[str, ...]


@cache
def statement(name: str, home: str = HOME, *, is_alone: bool = False) -> Statement:
    """Read the statement `sql/<name>.sql` of a package; alone it waits for locks that it skips `in a group`."""
    text = without_comments(name, home).replace(_IN_A_GROUP, "" if is_alone else " SKIP LOCKED")
    names = tuple(dict.fromkeys(_PARAMETER.findall(text)))
    return Statement(_PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", text).encode(), names)


def types(name: str) -> dict[str, str]:
    """Return the SQL type of each parameter of a statement that casts it."""
    return dict(_CAST.findall(written(name, HOME)))


def execute(
    connection: Connection, name: str, parameters: Mapping[str, Any], *, binary: bool = False, home: str = HOME
) -> psycopg.Cursor[dict[str, Any]]:
    """Execute one statement alone, of our package or another, on a connection whose cursors are raw ones."""
    text, names = statement(name, home, is_alone=True)
    return connection.execute(text, [parameters[each] for each in names], binary=binary)
