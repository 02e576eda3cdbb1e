"""Publishing from the engine's event loop: a push goes out in the call that asks for it, and no thread waits for Redis to answer.

One push under way; what comes meanwhile goes next, together. In: envelopes. Out: nothing, or an error for all that went together: some
of them may have arrived, and arrive twice when the sweeper sends them.
"""
# ruff: noqa: SLF001 - redis-py shows its sockets to nobody; kombu watches them likewise

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from flujo_client.transport.redis import ConnectionLost, NoAnswer, RedisError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flujo_client.contract.envelope import Envelope
    from flujo_client.transport.broker import Broker

logger = logging.getLogger(__name__)

ANSWER_S: Final = 10.0
"""Seconds within which Redis has to take a push."""
MOST_AT_ONCE: Final = 64


class LoopPublisher:
    """Publishes from one event loop.

    Args:
        broker: writes the messages, and knows where Redis is.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._connection: Any = None
        self._is_connecting = False
        self._waiting: deque[tuple[Sequence[Envelope], asyncio.Future[None]]] = deque()
        self._under_way: list[asyncio.Future[None]] = []
        self._unanswered = 0
        self._overdue: asyncio.TimerHandle | None = None

    def publish(self, envelopes: Sequence[Envelope]) -> asyncio.Future[None]:
        """Publish one message for each envelope; to be awaited. Raises RedisError."""
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((envelopes, done))
        if self._connection is None:
            self._connect(done.get_loop())
        elif not self._under_way:
            self._send()
        return done

    def close(self) -> None:
        """Close the connection; to be called when the loop is closed."""
        if self._connection is not None:
            self._connection.disconnect()

    def _connect(self, loop: asyncio.AbstractEventLoop) -> None:
        """Connect in a thread; who publishes meanwhile waits."""
        if not self._is_connecting:
            self._is_connecting = True
            connection = self._broker.new_connection()
            connecting = loop.run_in_executor(None, connection.connect)
            connecting.add_done_callback(lambda done: self._connected(connection, done.exception()))

    def _connected(self, connection: Any, error: BaseException | None) -> None:
        self._is_connecting = False
        if error is not None:
            failed = [done for _, done in self._waiting]
            self._waiting.clear()
            _end(failed, error)
            return
        self._connection = connection
        self._socket = connection._sock.fileno()
        asyncio.get_running_loop().add_reader(self._socket, self._readable)
        self._send()

    def _send(self) -> None:
        """Push what waits; the messages of a queue in one command."""
        some = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_AT_ONCE))]
        if not some:
            return
        self._under_way = [done for _, done in some]
        try:
            pushes = self._broker.pushes([envelope for envelopes, _ in some for envelope in envelopes])
            commands = [("LPUSH", key, *messages) for key, messages in pushes]
            self._unanswered = len(commands)
            self._connection.send_packed_command(self._connection.pack_commands(commands))
        except Exception as error:  # noqa: BLE001 - it is for those who publish
            self._fail(error)
        else:
            loop = asyncio.get_running_loop()
            self._overdue = loop.call_later(ANSWER_S, self._fail, NoAnswer("no answer from Redis"))

    def _readable(self) -> None:
        try:
            while self._unanswered and self._connection.can_read(0):
                self._connection.read_response()
                self._unanswered -= 1
        except RedisError as error:
            self._fail(error)
            return
        if self._under_way and not self._unanswered:
            self._finish(None)
            self._send()
        elif not self._under_way:
            self._fail(ConnectionLost("Redis closed the connection"))

    def _fail(self, error: BaseException) -> None:
        """Give the connection up: what else it would answer belongs to nobody."""
        connection, self._connection = self._connection, None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        connection.disconnect()
        self._finish(error)
        if self._waiting:
            self._connect(loop)

    def _finish(self, error: BaseException | None) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        ended, self._under_way, self._unanswered = self._under_way, [], 0
        _end(ended, error)


def _end(waiting: Sequence[asyncio.Future[None]], error: BaseException | None) -> None:
    for done in waiting:
        if not done.done():
            done.set_result(None) if error is None else done.set_exception(error)
