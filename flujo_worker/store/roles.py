"""Database roles with the least rights that workers, clients and readers need. They cannot log in: operators grant them to logins.

In: a connection in a transaction, of the tables' owner, and a prefix. Out: the roles. Passwords are never created here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import psycopg

from flujo_client.errors import SettingsError
from flujo_worker.store.postgres.statements import statement

if TYPE_CHECKING:
    from collections.abc import Sequence

PREFIX = "flujo"
_KINDS = "migrate", "worker", "client", "readonly"
_MISSING = "SELECT 1 FROM unnest(%s::text[]) AS n WHERE to_regrole(n) IS NULL"
_PREFIX = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,49}")


def names_of_roles(prefix: str) -> list[str]:
    """Return the names of the roles. Raises SettingsError for a prefix that would need quotes in SQL."""
    if not _PREFIX.fullmatch(prefix):
        raise SettingsError(
            f"the prefix of roles must be 1 to 50 lower-case letters, digits and underscores, not beginning with a digit or 'pg_', got '{prefix}'"
        )
    return [f"{prefix}_{kind}" for kind in _KINDS]


def grant_roles(connection: psycopg.Connection[Any], prefix: str) -> Sequence[str]:
    """Create the roles that are missing, make the first the owner of the tables, and grant each what it needs and nothing more.

    The first time, the connection's role must own the tables and be allowed to create roles; later it suffices that it is a member of the owner.
    """
    names = names_of_roles(prefix)
    if connection.execute(_MISSING, [names]).fetchone():
        connection.execute("SET LOCAL ROLE NONE")  # the owner of the tables may not create roles
    with psycopg.RawCursor(connection) as cursor:
        for (text,) in cursor.execute(statement("grant_roles").text, [prefix]).fetchall():
            cursor.execute(text.encode())
    return names
