"""Publishing from the engine's event loop: a push goes out in the call that asks for it, and no thread waits for Redis to answer.

One push under way; what comes meanwhile, or at the same moment, goes together. In: envelopes. Out: nothing, or an error for all that went together: some
of them may have arrived, and arrive twice when the sweeper sends them. Other commands go with them, and get their own answers.

A caller may take messages in the same round trip: the oldest of the list that it pushes to, before any waiting consumer.
"""
# ruff: noqa: SLF001 - redis-py does not show its sockets; kombu watches them likewise

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from flujo_client.transport.redis import ConnectionLost, NoAnswer, RedisError, ResponseError, is_not_allowed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flujo_client.contract.envelope import Envelope
    from flujo_client.transport.broker import Broker

logger = logging.getLogger(__name__)

ANSWER_S: Final = 3.0
"""Seconds within which Redis has to take a push: who waits for it holds a slot, and the sweeper sends what is overdue."""
MOST_AT_ONCE: Final = 64


class LoopPublisher:
    """Publishes from one event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._connection: Any = None
        self._is_connecting = False
        self._may_take = True
        self._waiting: deque[_Push | _Command] = deque()
        self._under_way: list[_Push | _Command] = []
        self._unanswered = self._of_pushes = self._taking = 0
        self._answers: list[Any] = []
        self._own: dict[bytes, Envelope] = {}
        self._overdue: asyncio.TimerHandle | None = None

    def publish(self, envelopes: Sequence[Envelope], *, take: int = 0) -> asyncio.Future[Sequence[Taken]]:
        """Publish one message for each envelope, all of the same run; to be awaited. Return the messages that were taken, the oldest first.

        At most `take` are taken from their list; none if they go to several, others are being published too, or Redis does not allow it.
        Raises RedisError: something may not have been published.
        """
        done: asyncio.Future[Sequence[Taken]] = asyncio.get_running_loop().create_future()
        self._add(_Push(envelopes, take, done), at_once=take > 0)
        return done

    def execute(self, *command: Any) -> asyncio.Future[Any]:
        """Execute a command; its answer is to be awaited, and raises RedisError for a refusal, or where the command may not have arrived."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._add(_Command(command, done))
        return done

    def _add(self, waiting: _Push | _Command, *, at_once: bool = False) -> None:
        self._waiting.append(waiting)
        loop = waiting.done.get_loop()
        if self._connection is None:
            self._connect(loop)
        elif at_once:
            self._send()
        elif len(self._waiting) == 1:
            loop.call_soon(self._send)  # after the others that the loop wakes at this moment

    def close(self) -> None:
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
            failed = list(self._waiting)
            self._waiting.clear()
            _end(failed, error)
            return
        self._connection = connection
        self._socket = connection._sock.fileno()
        asyncio.get_running_loop().add_reader(self._socket, self._readable)
        self._send()

    def _send(self) -> None:
        """Push what waits, unless a push is under way; the messages of a queue in one command."""
        if self._under_way or self._connection is None:
            return
        some = [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_AT_ONCE))]
        if not some:
            return
        self._under_way = some
        try:
            envelopes = [envelope for each in some if isinstance(each, _Push) for envelope in each.envelopes]
            pushes = list(self._broker.pushes(envelopes)) if envelopes else []
            commands: list[tuple[Any, ...]] = [("LPUSH", key, *messages) for key, messages in pushes]
            is_alone = len(some) == len(pushes) == 1 and self._may_take
            self._taking = some[0].take if is_alone and isinstance(some[0], _Push) else 0
            if self._taking:
                [(key, messages)] = pushes
                self._own = dict(zip(messages, envelopes, strict=True))
                commands = [("MULTI",), *commands, ("RPOP", key, self._taking), ("EXEC",)]
            self._of_pushes = len(commands)
            commands += [each.command for each in some if isinstance(each, _Command)]
            self._unanswered, self._answers = len(commands), []
            self._connection.send_packed_command(self._connection.pack_commands(commands))
        except Exception as error:  # noqa: BLE001 - the publishing callers get it
            self._fail(error)
        else:
            loop = asyncio.get_running_loop()
            self._overdue = loop.call_later(ANSWER_S, self._fail, NoAnswer("no answer from Redis"))

    def _readable(self) -> None:
        try:
            while self._unanswered and self._connection.can_read(0):
                self._answers.append(self._connection.read_response())
                self._unanswered -= 1
        except ResponseError as error:
            self._refused(error)
            return
        except RedisError as error:
            self._fail(error)
            return
        if self._under_way and not self._unanswered:
            done = self._pushed()
            answers = iter(self._answers[self._of_pushes :])
            for each in self._finish():
                _end([each], None, next(answers)) if isinstance(each, _Command) else _end([each], *done)
            self._send()
        elif not self._under_way:
            self._fail(ConnectionLost("Redis closed the connection"))

    def _pushed(self) -> tuple[BaseException | None, Sequence[Taken]]:
        """Return what became of pushes: an error or none, and the messages that were taken. EXEC's answer has those of all commands."""
        if not self._taking:
            return None, ()
        pushed, taken = self._answers[-1]
        error = pushed if isinstance(pushed, BaseException) else None
        return error, [Taken(each, self._own.get(each)) for each in taken] if isinstance(taken, list) else ()

    def _refused(self, error: ResponseError) -> None:
        """Handle an error of Redis. A transaction did not take place: the message is pushed again, without one. A command may fail without the pushes."""
        if self._taking:
            self._may_take = not is_not_allowed(error)
            again = cast("_Push", self._under_way.pop())
            self._waiting.appendleft(again._replace(take=0))
        elif len(self._answers) >= self._of_pushes:
            _end([each for each in self._under_way if isinstance(each, _Push)], None, ())
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Close the connection: its other answers are discarded."""
        connection, self._connection = self._connection, None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        connection.disconnect()
        _end(self._finish(), error)
        if self._waiting:
            self._connect(loop)

    def _finish(self) -> list[_Push | _Command]:
        """Return what was under way."""
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        ended, self._under_way, self._unanswered = self._under_way, [], 0
        return ended


class Taken(NamedTuple):
    """An item of a queue's list, and the envelope that it was written from if it was pushed in the same round trip."""

    message: bytes
    own: Envelope | None = None


class _Push(NamedTuple):
    """The messages to publish, how many to take, and the waiting future."""

    envelopes: Sequence[Envelope]
    take: int
    done: asyncio.Future[Sequence[Taken]]


class _Command(NamedTuple):
    """A command with its arguments, and the waiting future."""

    command: tuple[Any, ...]
    done: asyncio.Future[Any]


def _end(ended: Sequence[_Push | _Command], error: BaseException | None, answer: Any = None) -> None:
    """Set the answer or the error of each."""
    for each in ended:
        if not each.done.done():
            each.done.set_result(answer) if error is None else each.done.set_exception(error)
