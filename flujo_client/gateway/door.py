"""The doors that perform an operation's effects: one blocks, one is awaited.

The first contact with the database checks that its schema is the one this code knows.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.rows import dict_row

from flujo_client.errors import ClientError, FlujoError, SchemaVersionError
from flujo_client.gateway.effects import (
    CountQueued,
    CountRefused,
    Effect,
    Operation,
    PingBroker,
    Publish,
    Query,
    RequestSweep,
    Sleep,
)
from flujo_client.gateway.post import ClientPublisher
from flujo_client.gateway.requests import schema_version, statement
from flujo_client.transport.postgres import fate, options, unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from flujo_client.config.manager import Settings

T = TypeVar("T")

SCHEMA = 20
"""The schema this code reads and writes: the number of the newest migration."""

_VERSION = Query(schema_version())
_TRIES = 3


class SyncRunner:
    """Performs effects, waiting for each. Safe for several threads.

    Args:
        settings: with database and broker set.
    """

    def __init__(self, settings: Settings) -> None:
        from psycopg_pool import ConnectionPool

        self._url, self._post, self._is_checked = settings.database(), ClientPublisher(settings), False
        kwargs = _options(settings)
        self._pool: ConnectionPool[psycopg.Connection[dict[str, Any]]] = ConnectionPool(
            self._url,
            min_size=0,
            max_size=4,
            kwargs=kwargs,
            open=True,
            timeout=10,
            name="flujo-client",
            check=ConnectionPool.check_connection,  # one that Postgres closed in a restart is not given out
        )

    def perform(self, operation: Operation[T]) -> T:
        """Run an operation to its end and return its result."""
        step: Callable[[], Effect] = partial(next, operation)
        while True:
            try:
                effect = step()
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                step = partial(operation.send, self._do(effect))
            except FlujoError as error:  # the operation may know what to do about it
                step = partial(operation.throw, error)

    def close(self) -> None:
        """Close every connection."""
        self._pool.close(timeout=2)
        self._post.close()

    def _do(self, effect: Effect) -> Any:
        match effect:
            case Query(request, connection):
                return request.read(self._rows(effect) if connection is None else _rows(connection, effect))
            case Sleep(seconds):
                time.sleep(seconds)
            case _:
                return _send(self._post, effect)
        return None

    def _rows(self, query: Query) -> list[dict[str, Any]]:
        try:
            return self._with_retry(query)
        except psycopg.Error as error:
            failure = ClientError("this client is closed") if self._pool.closed else _to_flujo_error(self._url, error)
            raise failure from failure.__cause__

    def _with_retry(self, query: Query) -> list[dict[str, Any]]:
        """Ask; what met another statement is asked again at once."""
        for _ in range(_TRIES - 1):
            try:
                return self._execute(query)
            except psycopg.Error as error:
                if not _met_another(error):
                    raise
        return self._execute(query)

    def _execute(self, query: Query) -> list[dict[str, Any]]:
        with self._connect() as connection:
            if not self._is_checked:
                _check_schema(_rows(connection, _VERSION)[0])
                self._is_checked = True
            try:
                return _rows(connection, query)
            except psycopg.errors.ReadOnlySqlTransaction:
                connection.close()  # so that the next one finds a server that takes it
                raise

    def _connect(self) -> Any:
        if not self._is_checked:  # a wrong URL is told at once, not after the pool's patience
            psycopg.connect(self._url, **options(self._url)).close()
        return self._pool.connection()


class AsyncRunner:
    """Performs effects, awaited. What Celery has to do happens in a thread."""

    def __init__(self, settings: Settings) -> None:
        self._url, self._post = settings.database(), ClientPublisher(settings)
        self._options = _options(settings)
        self._pool: Any = None
        self._opening = asyncio.Lock()

    async def perform(self, operation: Operation[T]) -> T:
        """Run an operation to its end and return its result."""
        step: Callable[[], Effect] = partial(next, operation)
        while True:
            try:
                effect = step()
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                step = partial(operation.send, await self._do(effect))
            except FlujoError as error:  # the operation may know what to do about it
                step = partial(operation.throw, error)

    async def close(self) -> None:
        """Close every connection."""
        if self._pool is not None:
            await self._pool.close(timeout=2)
        await asyncio.to_thread(self._post.close)

    async def _do(self, effect: Effect) -> Any:
        match effect:
            case Query(request, connection):
                return request.read(await (self._rows(effect) if connection is None else _arows(connection, effect)))
            case Sleep(seconds):
                await asyncio.sleep(seconds)
            case _:
                return await asyncio.to_thread(_send, self._post, effect)
        return None

    async def _rows(self, query: Query) -> list[dict[str, Any]]:
        try:
            await self._open()
            return await self._with_retry(query)
        except psycopg.Error as error:
            failure = _to_flujo_error(self._url, error)
            raise failure from failure.__cause__

    async def _with_retry(self, query: Query) -> list[dict[str, Any]]:
        """Ask; what met another statement is asked again at once."""
        for _ in range(_TRIES - 1):
            try:
                return await self._execute(query)
            except psycopg.Error as error:
                if not _met_another(error):
                    raise
        return await self._execute(query)

    async def _execute(self, query: Query) -> list[dict[str, Any]]:
        async with self._pool.connection() as connection:
            try:
                return await _arows(connection, query)
            except psycopg.errors.ReadOnlySqlTransaction:
                await connection.close()  # so that the next one finds a server that takes it
                raise

    async def _open(self) -> None:
        async with self._opening:
            if self._pool is not None:
                return
            from psycopg_pool import AsyncConnectionPool

            async with await psycopg.AsyncConnection.connect(self._url, **self._options) as connection:
                _check_schema((await _arows(connection, _VERSION))[0])
            pool = AsyncConnectionPool(
                self._url,
                min_size=0,
                max_size=4,
                kwargs=self._options,
                open=False,
                timeout=10,
                check=AsyncConnectionPool.check_connection,
            )
            await pool.open()
            self._pool = pool


def _options(settings: Settings) -> dict[str, Any]:
    prepare_after = 5 if settings.prepare_statements else None
    ours = {"autocommit": True, "row_factory": dict_row, "prepare_threshold": prepare_after}
    return options(settings.database()) | ours


def _met_another(error: psycopg.Error) -> bool:
    """Tell whether this was undone because of another statement, and not because it took too long."""
    return fate(error) == "again" and not isinstance(error, psycopg.errors.QueryCanceled)


def _rows(connection: Any, query: Query) -> list[dict[str, Any]]:
    bounds = query.request.bounds
    with connection.transaction() if bounds else nullcontext(), connection.cursor(row_factory=dict_row) as cursor:
        if bounds:
            cursor.execute(statement(bounds.name, bounds.home), bounds.parameters)
        cursor.execute(statement(query.request.name, query.request.home), query.request.parameters)
        return list(cursor.fetchall()) if cursor.description is not None else []


async def _arows(connection: Any, query: Query) -> list[dict[str, Any]]:
    bounds = query.request.bounds
    async with connection.transaction() if bounds else nullcontext(), connection.cursor(row_factory=dict_row) as cursor:
        if bounds:
            await cursor.execute(statement(bounds.name, bounds.home), bounds.parameters)
        await cursor.execute(statement(query.request.name, query.request.home), query.request.parameters)
        return list(await cursor.fetchall()) if cursor.description is not None else []


def _send(post: ClientPublisher, effect: Effect) -> Any:
    match effect:
        case PingBroker():
            post.reach()
        case Publish(envelopes):
            return post.publish(envelopes)
        case RequestSweep():
            post.request_sweep()
        case CountQueued(queues):
            return post.depths(queues)
        case CountRefused():
            return post.refused()
        case _:
            raise ClientError(f"no door for {effect}")
    return None


def _to_flujo_error(url: str, error: psycopg.Error) -> FlujoError:
    """Tell what Postgres, or libpq before it, refused as an error of ours (M-428)."""
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    match error:
        case psycopg.errors.UndefinedTable():
            return SchemaVersionError("the database has no flujo tables", suggestion="run `flujo migrate`", cause=error)
        case psycopg.errors.QueryCanceled():
            way_out = "ask for less at once, such as a shorter window"
            return ClientError(f"Postgres gave up: {first}", suggestion=way_out, cause=error)
        case psycopg.DataError():  # an id with a NUL, a limit below zero
            return ClientError(f"Postgres takes no such value: {first}", cause=error)
    if error.sqlstate is not None and fate(error) == "ours":
        return ClientError(f"Postgres refused the statement: {first}", cause=error)
    return unreachable(url, error)


def _check_schema(row: dict[str, Any]) -> None:
    present = int(row["version"])
    if present < SCHEMA:
        raise SchemaVersionError(
            f"the database's schema is {present}, this client needs {SCHEMA}", suggestion="run `flujo migrate`"
        )
    if present > SCHEMA:
        raise SchemaVersionError(
            f"the database's schema is {present}, this client knows {SCHEMA}", suggestion="upgrade flujo-worker here"
        )
