"""The doors that perform a verb's effects: one that waits, one that is awaited.

The first contact with the database checks that its schema is the one this code knows.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row

from flujo_client.config import mask_url
from flujo_client.errors import ClientError, FlujoError, SchemaVersionError, ServiceUnreachable
from flujo_client.gateway.effects import Ask, CountRefused, Depth, Effect, Publish, Reach, Ring, Sleep
from flujo_client.gateway.post import Post
from flujo_client.gateway.requests import schema_version, statement

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from flujo_client.config import Settings

SCHEMA = 17
"""The schema this code reads and writes: the number of the newest migration."""

_VERSION = Ask(schema_version())


class Door:
    """Performs effects, waiting for each. Safe for several threads.

    Args:
        settings: with database and broker set.
    """

    def __init__(self, settings: Settings) -> None:
        from psycopg_pool import ConnectionPool

        self._settings, self._post, self._is_checked = settings, Post(settings), False
        kwargs = _options(settings)
        url = str(settings.database_url)
        self._pool: ConnectionPool[psycopg.Connection[dict[str, Any]]] = ConnectionPool(
            url,
            min_size=0,
            max_size=4,
            kwargs=kwargs,
            open=True,
            timeout=10,
            name="flujo-client",
            check=ConnectionPool.check_connection,  # one that Postgres closed in a restart is not given out
        )

    def perform(self, verb: Generator[Effect, Any, Any]) -> Any:
        """Run a verb to its end and return what it returns."""
        step: Callable[[], Effect] = partial(next, verb)
        while True:
            try:
                effect = step()
            except StopIteration as end:
                return end.value
            try:
                step = partial(verb.send, self._do(effect))
            except FlujoError as error:  # the verb may know what to do about it
                step = partial(verb.throw, error)

    def close(self) -> None:
        """Close every connection."""
        self._pool.close(timeout=2)
        self._post.close()

    def _do(self, effect: Effect) -> Any:
        match effect:
            case Ask(request, connection):
                return request.read(self._rows(effect) if connection is None else _rows(connection, effect))
            case Sleep(seconds):
                time.sleep(seconds)
            case _:
                return _send(self._post, effect)
        return None

    def _rows(self, ask: Ask) -> list[dict[str, Any]]:
        try:
            with self._connect() as connection:
                if not self._is_checked:
                    _check_schema(_rows(connection, _VERSION)[0])
                    self._is_checked = True
                return _rows(connection, ask)
        except psycopg.errors.UndefinedTable as error:
            raise _unmigrated() from error
        except psycopg.DataError as error:
            raise _refused(error) from error
        except psycopg.errors.QueryCanceled as error:
            raise _too_long(error) from error
        except psycopg.OperationalError as error:
            raise _unreachable(self._settings, error, is_closed=self._pool.closed) from error

    def _connect(self) -> Any:
        if not self._is_checked:  # a wrong URL is told at once, not after the pool's patience
            psycopg.connect(str(self._settings.database_url), connect_timeout=5).close()
        return self._pool.connection()


class AsyncDoor:
    """Performs effects, awaited. What Celery has to do happens in a thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._post, self._is_checked = settings, Post(settings), False
        self._pool: Any = None
        self._opening = asyncio.Lock()

    async def perform(self, verb: Generator[Effect, Any, Any]) -> Any:
        """Run a verb to its end and return what it returns."""
        step: Callable[[], Effect] = partial(next, verb)
        while True:
            try:
                effect = step()
            except StopIteration as end:
                return end.value
            try:
                step = partial(verb.send, await self._do(effect))
            except FlujoError as error:  # the verb may know what to do about it
                step = partial(verb.throw, error)

    async def close(self) -> None:
        """Close every connection."""
        if self._pool is not None:
            await self._pool.close(timeout=2)
        await asyncio.to_thread(self._post.close)

    async def _do(self, effect: Effect) -> Any:
        match effect:
            case Ask(request, connection):
                return request.read(await (self._rows(effect) if connection is None else _arows(connection, effect)))
            case Sleep(seconds):
                await asyncio.sleep(seconds)
            case _:
                return await asyncio.to_thread(_send, self._post, effect)
        return None

    async def _rows(self, ask: Ask) -> list[dict[str, Any]]:
        try:
            await self._open()
            async with self._pool.connection() as connection:
                return await _arows(connection, ask)
        except psycopg.errors.UndefinedTable as error:
            raise _unmigrated() from error
        except psycopg.DataError as error:
            raise _refused(error) from error
        except psycopg.errors.QueryCanceled as error:
            raise _too_long(error) from error
        except psycopg.OperationalError as error:
            raise _unreachable(self._settings, error) from error

    async def _open(self) -> None:
        async with self._opening:
            if self._pool is not None:
                return
            from psycopg_pool import AsyncConnectionPool

            url = str(self._settings.database_url)
            async with await psycopg.AsyncConnection.connect(
                url, connect_timeout=5, row_factory=dict_row
            ) as connection:
                _check_schema((await _arows(connection, _VERSION))[0])
            kwargs = _options(self._settings)
            pool = AsyncConnectionPool(
                url,
                min_size=0,
                max_size=4,
                kwargs=kwargs,
                open=False,
                timeout=10,
                check=AsyncConnectionPool.check_connection,
            )
            await pool.open()
            self._pool = pool


def _options(settings: Settings) -> dict[str, Any]:
    prepare_after = 5 if settings.prepare_statements else None
    return {"autocommit": True, "row_factory": dict_row, "connect_timeout": 5, "prepare_threshold": prepare_after}


def _rows(connection: Any, ask: Ask) -> list[dict[str, Any]]:
    bounds = ask.request.bounds
    with connection.transaction() if bounds else nullcontext(), connection.cursor(row_factory=dict_row) as cursor:
        if bounds:
            cursor.execute(statement(bounds.name, bounds.home), bounds.parameters)
        cursor.execute(statement(ask.request.name, ask.request.home), ask.request.parameters)
        return list(cursor.fetchall()) if cursor.description is not None else []


async def _arows(connection: Any, ask: Ask) -> list[dict[str, Any]]:
    bounds = ask.request.bounds
    async with connection.transaction() if bounds else nullcontext(), connection.cursor(row_factory=dict_row) as cursor:
        if bounds:
            await cursor.execute(statement(bounds.name, bounds.home), bounds.parameters)
        await cursor.execute(statement(ask.request.name, ask.request.home), ask.request.parameters)
        return list(await cursor.fetchall()) if cursor.description is not None else []


def _send(post: Post, effect: Effect) -> Any:
    match effect:
        case Reach():
            post.reach()
        case Publish(envelopes):
            return post.publish(envelopes)
        case Ring():
            post.ring()
        case Depth(queues):
            return post.depths(queues)
        case CountRefused():
            return post.refused()
        case _:
            raise ClientError(f"no door for {effect}")
    return None


def _unmigrated() -> SchemaVersionError:
    return SchemaVersionError("the database has no flujo tables", suggestion="run `flujo migrate`")


def _refused(error: psycopg.DataError) -> ClientError:
    """An id with a NUL, a limit below zero: told as an error of ours, whatever was asked (M-428)."""
    return ClientError(f"Postgres takes no such value: {str(error).strip().splitlines()[0]}", cause=error)


def _too_long(error: psycopg.errors.QueryCanceled) -> ClientError:
    said = str(error).strip().splitlines()[0]
    return ClientError(
        f"Postgres gave up: {said}", suggestion="ask for less at once, such as a shorter window", cause=error
    )


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


def _unreachable(settings: Settings, error: Exception, *, is_closed: bool = False) -> FlujoError:
    if is_closed:
        return ClientError("this client is closed")
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    return ServiceUnreachable(
        f"Postgres does not answer at {mask_url(str(settings.database_url))}: {said}",
        suggestion="check FLUJO_DATABASE_URL, or unset it and FLUJO_BROKER_URL to use embedded services",
        cause=error,
    )
