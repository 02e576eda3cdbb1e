"""Perform an operation's effects asynchronously. Calls of Celery and Redis run in a thread."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg.rows import dict_row

from flujo_client.config.manager import Settings
from flujo_client.contract.deployment import LockHolder
from flujo_client.errors import FlujoError
from flujo_client.gateway import door, effects
from flujo_client.gateway.groups import CallGroups, GroupedCall, answer_all
from flujo_client.gateway.post import MARK_AFTER_S, PATIENCE_S, ClientPublisher, Unmarked
from flujo_client.gateway.requests import mark_sent, statement
from flujo_client.gateway.run_watch import watch_of
from flujo_client.gateway.transaction import async_connection, flujo_tables_expected
from flujo_client.transport.encryption import encrypt_values
from flujo_client.transport.postgres import ANSWER_S, AsyncBoundedConnection, fate, set_up_session_async

T = TypeVar("T")
logger = logging.getLogger(__name__)


class AsyncRunner:
    """Perform effects asynchronously."""

    def __init__(self, settings: Settings) -> None:
        encrypt_values(settings)
        self._url, self._post = settings.database(), ClientPublisher(settings)
        self._options, self._prepares = door.connection_options(settings), settings.prepare_statements
        self._pool: Any = None
        self._is_closed = False
        self._opening, self._unmarked = asyncio.Lock(), Unmarked()
        self._marking: asyncio.Task[None] | None = None
        self._groups, self._leading = CallGroups(), set[asyncio.Task[None]]()

    async def perform(self, operation: effects.Operation[T]) -> T:
        step: Callable[[], effects.Effect] = partial(next, operation)
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
        if self._pool is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._finish_marking(), PATIENCE_S)
        async with self._opening:
            self._is_closed = True
            if self._pool is not None:
                await self._pool.close(timeout=2)
        await asyncio.to_thread(self._post.broker.close)

    async def _do(self, effect: effects.Effect) -> Any:
        match effect:
            case effects.Query(connection=connection):
                if connection is None:
                    return await self._answer(effect)
                with flujo_tables_expected():
                    return await _answer(await async_connection(connection), effect)
            case effects.Delay(seconds):
                await asyncio.sleep(seconds)
            case effects.AwaitRun(run_id, statuses, seconds):
                await _wait(partial(watch_of(self._url).waiting, run_id, statuses), seconds)
            case effects.AwaitNews(listen, seconds):
                return await _wait(listen, seconds)
            case effects.MarkSent(keys, sent_at):
                if self._unmarked.add(keys, sent_at):
                    asyncio.get_running_loop().call_later(MARK_AFTER_S, self._start_marking)
            case effects.Together():
                return await self._together(effect)
            case effects.ReachBroker() if self._post.is_fresh:
                pass
            case _:
                return await asyncio.to_thread(door.send, self._post, effect)
        return None

    async def _together(self, effect: effects.Together) -> Any:
        call = GroupedCall(effect.item, asyncio.get_running_loop().create_future(), partial(self._start_group, effect))
        if self._groups.enter(effect.kind, call):
            call.lead(call)
        try:
            return await call.answer
        except asyncio.CancelledError:
            self._groups.withdraw(effect.kind, call)
            raise

    def _start_group(self, effect: effects.Together, leader: GroupedCall) -> None:
        """Perform a group in a task of its own: its calls do not end with the one that leads, which may be cancelled."""
        task = asyncio.create_task(self._perform_group(effect, leader))
        self._leading.add(task)
        task.add_done_callback(self._leading.discard)

    async def _perform_group(self, effect: effects.Together, leader: GroupedCall) -> None:
        group = self._groups.join(effect.kind, leader)
        results: Sequence[Any] = ()
        try:
            results = await self.perform(effect.act([each.item for each in group]))
        finally:
            answer_all(group, results)
            self._groups.hand_over(effect.kind)

    async def _answer(self, query: effects.Query) -> Any:
        tries = door.TRIES
        while True:
            tries -= 1
            try:
                await self._open()
                return await self._execute(query)
            except psycopg.Error as error:
                if tries and door.is_undone_by_another(error):
                    continue
                door.require_open(is_closed=self._is_closed)
                failure = door.to_flujo_error(self._url, error)
                if fate(error) == "locked":
                    failure = door.locked(await self._holders(), error)
                raise failure from failure.__cause__

    async def _holders(self) -> Sequence[LockHolder]:
        with suppress(psycopg.Error):  # on a connection of its own, for there is no pool before the schema was checked
            async with await _Connection.connect(self._url, **self._options) as connection:
                found: Sequence[LockHolder] = await _answer(connection, door.HOLDERS)
                return found
        return ()

    async def _execute(self, query: effects.Query) -> Any:
        async with self._pool.connection() as connection:
            try:
                answer = await _answer(connection, query)
            except psycopg.errors.ReadOnlySqlTransaction:
                await connection.close()  # so that the next one finds a server that takes it
                raise
            connection.answered_at = time.monotonic()
            return answer

    def _start_marking(self) -> None:
        self._marking = asyncio.ensure_future(self._mark())

    async def _finish_marking(self) -> None:
        if self._marking is not None:
            await self._marking
        await self._mark()

    async def _mark(self) -> None:
        if not (ages := self._unmarked.take()):
            return
        try:
            await self._answer(effects.Query(mark_sent(ages)))
        except FlujoError as error:
            logger.info(door.NOT_MARKED, len(ages), error.message)

    async def _open(self) -> None:
        async with self._opening:
            door.require_open(is_closed=self._is_closed)
            if self._pool is not None:
                return
            from psycopg_pool import AsyncConnectionPool

            async with await _Connection.connect(self._url, **self._options) as connection:
                if self._prepares:
                    await set_up_session_async(connection)
                (await _answer(connection, door.VERSION)).require(door.SCHEMA, door.SCHEMA)
            options = door.pool_options(self._options, set_up_session_async if self._prepares else None)
            pool = AsyncConnectionPool(self._url, connection_class=_Connection, check=_check, **options)
            await pool.open()
            self._pool = pool


class _Connection(AsyncBoundedConnection[dict[str, Any]]):
    answered_at = float("-inf")


async def _check(connection: _Connection) -> None:
    if door.needs_check(connection, connection.answered_at):
        connection.answer_s = door.CHECK_S
        await connection.execute("")
        connection.answer_s = ANSWER_S


async def _wait(listen: Callable[[Callable[[], object]], AbstractContextManager[None]], seconds: float) -> bool:
    loop, is_over = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop has ended before its waiting task
            loop.call_soon_threadsafe(is_over.set)

    with listen(wake), suppress(TimeoutError):
        async with asyncio.timeout(seconds):  # Python 3.11's wait_for loses a cancel that comes together with the wake
            return await is_over.wait()
    return False


async def _answer(connection: Any, query: effects.Query) -> Any:
    request = query.request
    if request.undoes and query.connection is not None:
        await connection.execute("")  # as in door.py
    async with (
        connection.pipeline() if request.after else nullcontext(),
        connection.transaction() if door.needs_transaction(connection, query) else nullcontext(),
    ):
        cursors = [
            await connection.cursor(row_factory=dict_row).execute(statement(each.name, each.home), each.parameters)
            for each in request.in_order
        ]
        return request.read([row for cursor in door.answering(request, cursors) for row in await cursor.fetchall()])
