"""One thread of this process writes what its attempts stream to Redis. No attempt waits for it: while Redis is away, entries are dropped.

In: entries of attempts. Out: the streams of their runs.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from flujo_client.contract.stream import keys_of, pack_data, place_of
from flujo_client.errors import SerializationError
from flujo_client.serial import safe_serialize
from flujo_client.transport.redis import NoScript, RedisError, connect
from flujo_worker.streams.writer import Batch, Writer

if TYPE_CHECKING:
    from flujo_client.config.manager import Settings
    from flujo_client.contract.envelope import Envelope

logger = logging.getLogger(__name__)

ANSWER_S: Final = 1.0
"""Seconds that Redis may take to answer."""
AWAY_S: Final = 1.0
"""Seconds that nothing is written after Redis did not answer."""
AT_ONCE: Final = 64
"""The most batches of one round trip."""
MOST_DUE: Final = 10_000
"""Attempts that wait to be written at most, while Redis is away."""
LAST_S: Final = 1.0
"""Seconds that a closing process gives to the last entries."""


class StreamWriters:
    """Writes streams. Safe for several threads.

    Args:
        settings: where Redis is, how long streams are, and the prefix of all keys.
    """

    def __init__(self, settings: Settings) -> None:
        self._prefix, own = settings.broker_key_prefix, settings.streams
        self._bounds = str(own.max_entries), str(round(own.expire_s * 1000))
        self._redis = connect(settings.redis(), settings.sentinel_options(), patience_s=ANSWER_S, most=2)
        self._script = files("flujo_worker.streams").joinpath("write.lua").read_text(encoding="utf-8")
        self._sha = ""
        self._due: dict[Writer, float] = {}
        self._changed, self._wakes_at = threading.Condition(), 0.0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def writer(self, envelope: Envelope, fence: int) -> Writer:
        """Return what streams one attempt under one claim."""
        place = place_of(envelope.address, envelope.step)
        return Writer(envelope.ticket.run, place, envelope.number, fence, self._schedule)

    def withdraw(self, envelope: Envelope, fence: int) -> None:
        """Withdraw what an attempt has streamed under earlier claims than this one."""
        self.writer(envelope, fence).claim()

    def close(self) -> None:
        """Write what is left, as far as that takes no time, and end the thread."""
        with self._changed:
            self._closing.set()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(LAST_S)
        self._redis.connection_pool.disconnect()

    def _schedule(self, writer: Writer, at: float) -> None:
        """Write a writer's batch at a time of the monotonic clock."""
        with self._changed:
            known = self._due.get(writer)
            if known is None and len(self._due) >= MOST_DUE:
                return
            if known is not None and known <= at:
                return
            self._due[writer] = at
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="flujo-streams", daemon=True)
                self._thread.start()
            if at < self._wakes_at:
                self._changed.notify()

    def _work(self) -> None:
        while (due := self._wait()) is not None:
            try:
                self._write([batch for batch in map(Writer.take, due) if batch.entries or batch.writer.is_empty])
            except Exception:
                logger.exception("entries of streams are lost")
                for writer in due:
                    writer.put("gap", {})

    def _wait(self) -> Sequence[Writer] | None:
        """Wait until batches are due, and return their writers; None: there are no more."""
        with self._changed:
            while True:
                now = time.monotonic()
                due = [writer for writer, at in self._due.items() if at <= now or self._closing.is_set()][:AT_ONCE]
                for writer in due:
                    del self._due[writer]
                if due:
                    return due
                if self._closing.is_set():
                    return None
                self._wakes_at = min(self._due.values(), default=math.inf)
                self._changed.wait(None if math.isinf(self._wakes_at) else self._wakes_at - now)
                self._wakes_at = 0.0

    def _write(self, batches: Sequence[Batch]) -> None:
        if not batches:
            return
        lost = False
        for batch, answer in zip(batches, self._answers(batches), strict=True):
            if isinstance(answer, Exception):
                lost = True
                logger.warning("the stream of run %s is not written: %s", batch.writer.run, answer)
                batch.writer.lose(batch)
                if not self._closing.is_set():
                    self._schedule(batch.writer, time.monotonic() + AWAY_S)
            else:
                batch.writer.written(answer)
        if lost:
            self._closing.wait(AWAY_S)

    def _answers(self, batches: Sequence[Batch]) -> list[Any]:
        """Return the script's answer to each batch: the epoch, None where the claim is over, or the error of Redis."""
        try:
            self._sha = self._sha or self._redis.script_load(self._script)
            answers = self._sent(batches)
            if any(isinstance(each, NoScript) for each in answers):
                self._redis.script_load(self._script)
                again = [each for each, answer in zip(batches, answers, strict=True) if isinstance(answer, NoScript)]
                repeated = iter(self._sent(again))
                answers = [next(repeated) if isinstance(each, NoScript) else each for each in answers]
        except RedisError as error:
            return [error] * len(batches)
        return answers

    def _sent(self, batches: Sequence[Batch]) -> list[Any]:
        pipe = self._redis.pipeline(transaction=False)
        for batch in batches:
            writer = batch.writer
            claim = writer.place, writer.number, writer.fence, writer.epoch
            entries = (part for kind, data in batch.entries for part in (kind, _packed(data)))
            pipe.evalsha(self._sha, 2, *keys_of(self._prefix, writer.run), *claim, *self._bounds, *entries)
        return pipe.execute(raise_on_error=False)


def _packed(data: Mapping[str, Any]) -> bytes:
    """Pack data; what is not plain, or no text that can be stored, as events show it."""
    try:
        return pack_data(data)
    except SerializationError:
        return pack_data(safe_serialize(data))
