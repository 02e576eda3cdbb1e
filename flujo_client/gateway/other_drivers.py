"""Execute our statements in a caller's transaction of psycopg2 or asyncpg, through the part of psycopg 3's interface that the runners use."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from typing import Any, Final, Self

_PARAMETER: Final = re.compile(r"%\((\w+)\)[sb](::jsonb)?")
_SAVEPOINT: Final = (
    "SAVEPOINT flujo",
    "ROLLBACK TO SAVEPOINT flujo; RELEASE SAVEPOINT flujo",
    "RELEASE SAVEPOINT flujo",
)


class Psycopg2Connection:
    """A connection of psycopg2. Our cursors return mappings, whatever the caller's return."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def cursor(self, **_: object) -> Self:
        return self

    def pipeline(self) -> nullcontext[None]:
        return nullcontext()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        begins = self._connection.autocommit and not self._connection.info.transaction_status
        begin, undo, end = ("BEGIN", "ROLLBACK", "COMMIT") if begins else _SAVEPOINT
        self.execute(begin.encode())
        try:
            yield
        except BaseException:
            self.execute(undo.encode())
            raise
        self.execute(end.encode())

    def execute(self, sql: bytes, parameters: Mapping[str, Any] | None = None) -> Any:
        from psycopg2.extras import RealDictCursor

        cursor = self._connection.cursor(cursor_factory=RealDictCursor)
        if sql:  # psycopg2 begins transactions on its own, and refuses an empty statement
            cursor.execute(_PARAMETER.sub(r"%(\1)s\2", sql.decode()), parameters)
        return cursor


class AsyncpgConnection:
    """A connection of asyncpg, and the rows of its last statement."""

    description: Final = ()

    def __init__(self, connection: Any, rows: Sequence[Any] = ()) -> None:
        self._connection, self._rows = connection, rows

    def cursor(self, **_: object) -> Self:
        return self

    def pipeline(self) -> nullcontext[None]:
        return nullcontext()

    def transaction(self) -> AbstractAsyncContextManager[None]:
        begun: AbstractAsyncContextManager[None] = self._connection.transaction()
        return begun

    async def execute(self, sql: bytes, parameters: Mapping[str, Any] | None = None) -> AsyncpgConnection:
        if not sql:
            return self
        names: list[str] = []

        def place(found: re.Match[str]) -> str:
            names.append(found[1])
            return f"${len(names)}" + ("::text::jsonb" if found[2] else "")  # a caller's codec would encode JSON twice

        text = _PARAMETER.sub(place, sql.decode()).replace("%%", "%")
        rows = await self._connection.fetch(text, *((parameters or {})[name] for name in names))
        return AsyncpgConnection(self._connection, rows)

    async def fetchall(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self._rows]
