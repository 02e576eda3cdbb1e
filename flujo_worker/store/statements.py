"""The SQL statements, one file each, read once.

In a file a parameter is written `%(name)s`, and may stand there several times. Postgres is given numbers: psycopg would turn names into
numbers too, but remembers that only for short statements, and ours that merges a tree is longer; reading it each time cost a
millisecond.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

_PARAMETER = re.compile(r"%\((\w+)\)s")


class Statement(NamedTuple):
    """A statement with `$1`, `$2` and so on, and the names they stand for."""

    text: bytes
    names: tuple[str, ...]


@cache
def statement(name: str) -> Statement:
    """Read the statement `sql/<name>.sql`, without its comment lines, which Postgres need not parse each time."""
    text = files("flujo_worker.store").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    names = tuple(dict.fromkeys(_PARAMETER.findall(lines)))
    numbered = _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", lines)
    return Statement(numbered.strip().rstrip(";").encode(), names)


def execute(
    connection: psycopg.Connection[dict[str, Any]], name: str, parameters: Mapping[str, Any], *, binary: bool = False
) -> psycopg.Cursor[dict[str, Any]]:
    """Execute the statement `sql/<name>.sql` on a connection whose cursors are raw ones."""
    text, names = statement(name)
    return connection.execute(text, [parameters[each] for each in names], binary=binary)
