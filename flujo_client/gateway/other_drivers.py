"""Execute our statements in a caller's transaction of psycopg2 or asyncpg, through the part of psycopg 3's interface that the runners use."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, Self

_PARAMETER: Final = re.compile(r"%\((\w+)\)[sb](::jsonb)?")
_SAVEPOINT: Final = (b"SAVEPOINT flujo", b"ROLLBACK TO flujo; RELEASE flujo", b"RELEASE flujo")


class _Borrowed:
    """A connection of another driver. It stands for its cursors, and sends each statement by itself."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def cursor(self, **_: object) -> Self:
        return self

    def pipeline(self) -> nullcontext[None]:
        return nullcontext()


class Psycopg2Connection(_Borrowed):
    """A connection of psycopg2. Our cursors return mappings, whatever the caller's return."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        begins = self._connection.autocommit and not self._connection.info.transaction_status
        begin, undo, end = (b"BEGIN", b"ROLLBACK", b"COMMIT") if begins else _SAVEPOINT
        self.execute(begin)
        try:
            yield
        except BaseException:
            self.execute(undo)
            raise
        self.execute(end)

    def execute(self, sql: bytes, parameters: Mapping[str, Any] | None = None) -> Any:
        from psycopg2.extras import RealDictCursor

        cursor = self._connection.cursor(cursor_factory=RealDictCursor)
        if sql:  # psycopg2 begins transactions on its own, and refuses an empty statement
            cursor.execute(_PARAMETER.sub(r"%(\1)s\2", sql.decode()), parameters)
        return cursor


class AsyncpgConnection(_Borrowed):
    """A connection of asyncpg, and the rows of its last statement."""

    description: Final = ()

    def __init__(self, connection: Any, rows: Sequence[Any] = ()) -> None:
        super().__init__(connection)
        self._rows = rows

    def transaction(self) -> Any:
        return self._connection.transaction()

    async def execute(self, sql: bytes, parameters: Mapping[str, Any] | None = None) -> Self:
        names: list[str] = []

        def place(found: re.Match[str]) -> str:
            names.append(found[1])
            return f"${len(names)}" + ("::text::jsonb" if found[2] else "")  # a caller's codec would encode JSON twice

        text = _PARAMETER.sub(place, (sql or b"").decode()).replace("%%", "%")
        values = [parameters[name] for name in names] if parameters else []
        return type(self)(self._connection, await self._connection.fetch(text, *values))

    async def fetchall(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self._rows]
