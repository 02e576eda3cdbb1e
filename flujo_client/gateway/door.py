"""Perform an operation's effects synchronously. The first contact with the database checks that its schema is the one this code knows."""

from __future__ import annotations

import logging
import select
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar, cast

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import AdaptersMap, Loader
from psycopg.pq import Format
from psycopg.rows import dict_row

from flujo_client.config.manager import Settings
from flujo_client.contract.deployment import LockHolder
from flujo_client.contract.rows import EARLIEST, LATEST
from flujo_client.errors import ClientError, FlujoError, SchemaVersionError
from flujo_client.gateway import effects
from flujo_client.gateway.groups import CallGroups, GroupedCall, answer_all
from flujo_client.gateway.operator_requests import lock_holders
from flujo_client.gateway.post import Ages, ClientPublisher, MarkThread
from flujo_client.gateway.requests import Request, mark_sent, schema_version, statement
from flujo_client.gateway.run_watch import watch_of
from flujo_client.gateway.transaction import flujo_tables_expected, sync_connection
from flujo_client.transport import postgres
from flujo_client.transport.encryption import encrypt_values
from flujo_client.transport.postgres import ANSWER_S, BoundedConnection, fate

T = TypeVar("T")
logger = logging.getLogger(__name__)

SCHEMA = 3
"""The schema that this code reads and writes: the newest migration that does not have to wait until older workers are gone."""

VERSION = effects.Query(schema_version())
HOLDERS = effects.Query(lock_holders(postgres.LOCK_WAIT_S))
TRIES = 3
FRESH_S = 1.0
"""A connection that answered this recently is not checked with a query; if Postgres closed it, its socket shows that."""
CHECK_S = 3.0
"""Seconds that the check may take."""
RECONNECT_S = 2.0
"""Seconds after which a pool gives up connecting, and begins anew for those who wait: its pauses grow to as long as Postgres was away."""
_LEADS: Final = object()
"""The answer to a call that is to perform the next group."""
NOT_MARKED = "%d messages not marked as sent: %s"


class SyncRunner:
    """Perform effects, waiting for each. Safe for several threads.

    With `reads_within_s`, statements may only read, each for so many seconds; behind a pooler the role has to bound them.
    """

    def __init__(self, settings: Settings, *, reads_within_s: float | None = None) -> None:
        from psycopg_pool import ConnectionPool

        encrypt_values(settings)
        self._url, self._post = settings.database(), ClientPublisher(settings)
        self._is_checked = self._is_closed = False
        self._marks, self._groups, self._busy = MarkThread(self._mark), CallGroups(), threading.local()
        kwargs, set_up = connection_options(settings), partial(postgres.set_up_session, reads_within_s=reads_within_s)
        options = pool_options(kwargs, set_up if settings.prepare_statements else None)
        self._pool: ConnectionPool[_Connection] = ConnectionPool(
            self._url, connection_class=_Connection, check=_check, name="flujo-client", **options
        )

    def perform(self, operation: effects.Operation[T]) -> T:
        """Run an operation to its end and return its result."""
        step: Callable[[], effects.Effect] = partial(next, operation)
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
        self._marks.finish()
        self._is_closed = True
        self._pool.close(timeout=2)
        self._post.broker.close()

    def _do(self, effect: effects.Effect) -> Any:
        match effect:
            case effects.Query(connection=connection):
                if connection is None:
                    return self._answer(effect)
                with flujo_tables_expected():
                    return _answer(sync_connection(connection), effect)
            case effects.Delay(seconds):
                time.sleep(seconds)
            case effects.AwaitRun(run_id, statuses, seconds):
                _wait(partial(watch_of(self._url).waiting, run_id, statuses), seconds)
            case effects.AwaitNews(listen, seconds):
                return _wait(listen, seconds)
            case effects.MarkSent(keys, sent_at):
                self._marks.add(keys, sent_at)
            case effects.Together():
                return self._together(effect)
            case _:
                return send(self._post, effect)
        return None

    def _together(self, effect: effects.Together) -> Any:
        if getattr(self._busy, "is_so", False):
            return None  # in the handler of a signal, which must not wait for the call that it interrupted
        self._busy.is_so = True
        try:
            return self._in_group(effect)
        finally:
            self._busy.is_so = False

    def _in_group(self, effect: effects.Together) -> Any:
        call = GroupedCall(effect.item, Future(), lambda call: call.answer.set_result(_LEADS))
        if not self._groups.enter(effect.kind, call) and (result := self._wait(effect, call)) is not _LEADS:
            return result
        group = self._groups.join(effect.kind, call)
        results: Sequence[Any] = ()
        try:
            results = self.perform(effect.act([each.item for each in group]))
        finally:  # also where a signal's handler raises: the others continue alone
            answer_all(group[1:], results[1:])
            self._groups.hand_over(effect.kind)
        return results[0]

    def _wait(self, effect: effects.Together, call: GroupedCall) -> Any:
        try:
            return call.answer.result()
        except BaseException:
            is_in_group = not self._groups.withdraw(effect.kind, call)
            if is_in_group and call.answer.done() and call.answer.result() is _LEADS:
                self._groups.hand_over(effect.kind)
            raise

    def _answer(self, query: effects.Query) -> Any:
        """Execute a query; retry it at once after a conflict with another statement."""
        tries = TRIES
        while True:
            tries -= 1
            try:
                return self._execute(query)
            except psycopg.Error as error:
                if tries and is_undone_by_another(error):
                    continue
                require_open(is_closed=self._is_closed)
                failure = to_flujo_error(self._url, error)
                if fate(error) == "locked":
                    failure = locked(self._holders(), error)
                raise failure from failure.__cause__

    def _holders(self) -> Sequence[LockHolder]:
        """Return the sessions that hold locks. They may hold what the check of the schema reads, so that is left out."""
        with suppress(psycopg.Error), self._connect() as connection:
            found: Sequence[LockHolder] = _answer(connection, HOLDERS)
            return found
        return ()

    def _execute(self, query: effects.Query) -> Any:
        with self._connect() as connection:
            if not self._is_checked:
                _answer(connection, VERSION).require(SCHEMA, SCHEMA)
                self._is_checked = True
            try:
                answer = _answer(connection, query)
            except psycopg.errors.ReadOnlySqlTransaction:
                connection.close()  # so that the next one finds a server that takes it
                raise
            connection.answered_at = time.monotonic()
            return answer

    def _mark(self, ages: Ages) -> None:
        try:
            self._answer(effects.Query(mark_sent(ages)))
        except FlujoError as error:
            logger.info(NOT_MARKED, len(ages), error.message)

    def _connect(self) -> Any:
        require_open(is_closed=self._is_closed)
        self._pool.open()  # its threads begin here: a client that was made before a fork serves in each child
        if not self._is_checked:  # a wrong URL is reported at once, not after the pool's time-out
            psycopg.connect(self._url, **postgres.options(self._url)).close()
        return self._pool.connection()


class TimeLoader(Loader):
    """Read a timestamptz; one outside of the years 2 to 9998 becomes `EARLIEST` or `LATEST`.

    Postgres has such times, `infinity` among them, and Python has not: psycopg would raise for all rows of an answer.
    """

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        kind = psycopg.adapters.get_loader(oid, Format.TEXT)
        assert kind is not None
        self._strict = kind(oid, context)

    def load(self, data: Buffer) -> datetime:
        try:
            at = cast("datetime", self._strict.load(data))
        except psycopg.DataError:
            text = bytes(data)
            return EARLIEST if text.startswith(b"-") or text.endswith(b"BC") else LATEST
        return at if EARLIEST.year < at.year < LATEST.year else EARLIEST if at.year == EARLIEST.year else LATEST


LENIENT_TIMES: Final = AdaptersMap(psycopg.adapters)
LENIENT_TIMES.register_loader("timestamptz", TimeLoader)


class _Connection(BoundedConnection[dict[str, Any]]):
    answered_at = float("-inf")


def require_open(*, is_closed: bool) -> None:
    """Raise ClientError for a client that is closed: those that wait would try again if its pool were reported as an unreachable Postgres."""
    if is_closed:
        raise ClientError(
            "this client is closed", suggestion="close a client after its last use, or make another"
        ) from None


def pool_options(kwargs: dict[str, Any], configure: Callable[..., Any] | None) -> dict[str, Any]:
    """Return the options of a pool of either runner."""
    again = {"open": False, "reconnect_timeout": RECONNECT_S, "reconnect_failed": connect_again}
    return {"kwargs": kwargs, "configure": configure, "min_size": 0, "max_size": 4, "timeout": 10, **again}


def connect_again(pool: Any) -> Any:
    """Begin to connect anew, if someone waits for a connection; gives what an asynchronous pool awaits."""
    return pool.check() if pool.get_stats()["requests_waiting"] else None


def _check(connection: _Connection) -> None:
    """Raise if a connection is broken, such as one that Postgres closed in a restart."""
    if needs_check(connection, connection.answered_at):
        connection.answer_s = CHECK_S
        connection.execute("")
        connection.answer_s = ANSWER_S


def needs_check(connection: _Connection | psycopg.AsyncConnection[Any], answered_at: float) -> bool:
    """Return whether a connection may be broken: it has not answered for a while, or has sent something unrequested."""
    if time.monotonic() - answered_at > FRESH_S:
        return True
    waiting = select.poll()
    waiting.register(connection.fileno(), select.POLLIN)
    return bool(waiting.poll(0))


def connection_options(settings: Settings) -> dict[str, Any]:
    prepare_after = 5 if settings.prepare_statements else None
    ours = {"autocommit": True, "row_factory": dict_row, "prepare_threshold": prepare_after, "context": LENIENT_TIMES}
    return postgres.options(settings.database()) | ours


def is_undone_by_another(error: psycopg.Error) -> bool:
    """Return whether a conflict with another statement undid this, and not a timeout."""
    return fate(error) in ("again", "locked") and not isinstance(error, psycopg.errors.QueryCanceled)


def _wait(listen: Callable[[Callable[[], object]], AbstractContextManager[None]], seconds: float) -> bool:
    is_over = threading.Event()
    with listen(is_over.set):
        return is_over.wait(seconds)


def _answer(connection: Any, query: effects.Query) -> Any:
    """Execute a request with the requests before and after it, in one transaction; if `undoes` is set, an exception of `read` rolls it back."""
    request = query.request
    if request.undoes and query.connection is not None:
        connection.execute("")  # begins the caller's transaction, if that is not begun: ours is then a savepoint in it
    with (
        connection.pipeline() if request.after else nullcontext(),
        connection.transaction() if needs_transaction(connection, query) else nullcontext(),
    ):
        cursors = [
            connection.cursor(row_factory=dict_row).execute(statement(each.name, each.home), each.parameters)
            for each in request.in_order
        ]
        return request.read([row for cursor in answering(request, cursors) for row in cursor.fetchall()])


def answering(request: Request[Any], cursors: Sequence[Any]) -> Sequence[Any]:
    """Return the cursors whose rows are the answer."""
    return cursors if request.after else [each for each in cursors[-1:] if each.description is not None]


def needs_transaction(connection: Any, query: effects.Query) -> bool:
    """Return whether a request has several statements, may be undone, or has waits that no session bounds."""
    request = query.request
    is_unbounded = query.connection is None and connection.prepare_threshold is None
    return request.undoes or len(request.in_order) > 1 or is_unbounded


def send(post: ClientPublisher, effect: effects.Effect) -> Any:
    match effect:
        case effects.Publish(envelopes):
            return post.publish(envelopes)
        case effects.ReachBroker():
            return post.reach()
        case effects.AskBroker(ask):
            return ask(post)
    raise ClientError(f"cannot run {effect}")


def to_flujo_error(url: str, error: psycopg.Error) -> FlujoError:
    """Return our error for one of Postgres or libpq."""
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    match error:
        case psycopg.errors.UndefinedTable():
            return SchemaVersionError("the database has no flujo tables", suggestion="run `flujo migrate`", cause=error)
        case psycopg.errors.QueryCanceled():
            way_out = "request less at once, such as a shorter window"
            return ClientError(f"Postgres gave up: {first}", suggestion=way_out, cause=error)
        case psycopg.DataError():  # an id with a NUL, a limit below zero
            return ClientError(f"Postgres does not accept this value: {first}", cause=error)
    if error.sqlstate is not None and fate(error) == "ours":
        return ClientError(f"Postgres refused the statement: {first}", cause=error)
    return postgres.unreachable(url, error)


def locked(holders: Sequence[LockHolder], error: psycopg.Error) -> ClientError:
    """Return the error for a row that stayed locked, naming the sessions that may have locked it."""
    by = ", ".join(map(str, holders)) or "another transaction"
    what = f"rows of this run, or of what it shares, are locked by {by}; nothing was changed"
    way_out = "try again; if it stays locked, end that transaction, such as by SELECT pg_terminate_backend(pid)"
    return ClientError(what, suggestion=way_out, code="LOCKED", cause=error)
