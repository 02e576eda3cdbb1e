"""Follow a run's stream from a cursor to the run's end, as operations for both clients."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from flujo_client.contract.read import plain
from flujo_client.contract.records import LIVE_RUN, RUN_STATUSES, RunRecord, StepRecord
from flujo_client.contract.stream import BEGINNING, Cursor, StreamEvent, keys_of, read_entry
from flujo_client.errors import ClientError, ServiceUnreachable
from flujo_client.gateway import requests
from flujo_client.gateway.effects import AwaitNews, Operation, query
from flujo_client.gateway.run_watch import watch_of
from flujo_client.serial import Packed
from flujo_client.streams.hub import Feed, StreamLook, hub_of
from flujo_client.streams.reading import Rows, StreamReading

if TYPE_CHECKING:
    from flujo_client.config.manager import Settings

ENDED: Final = tuple(each for each in RUN_STATUSES if each not in LIVE_RUN)
IDLE_S: Final = 10.0
"""Seconds without an entry after which a reader asks whether it is still in its stream: after a flush, a clock that went back makes an epoch that is
less than its own. The run's end does not wait for that: `RunWatch` reads the rows of all runs that are read."""
LAST_S: Final = 1.0
"""The same, once the run has ended."""


class RunStream:
    """Read a run's stream until the run has one of the statuses `until`.

    With `paused` among them, the stream stops at a question, without the event `end`.
    """

    def __init__(self, run_id: str, feed: Feed, until: Collection[str] = ENDED) -> None:
        self.run_id, self._feed, self._reading = run_id, feed, StreamReading(feed.at)
        self._entries: Sequence[StreamEvent] = ()
        self._look: StreamLook | None = None
        self._ended: RunRecord | None = None
        self._until, self._may_have_ended, self._is_checked = until, False, False
        self._is_idle = False
        if feed.at != BEGINNING:
            feed.look()

    def notice(self) -> None:
        """Take note, from any thread, that the run may have ended."""
        self._may_have_ended = True
        self._feed.rouse()

    def next_page(self) -> Operation[list[StreamEvent]]:
        """Wait for events and return them; none after the run's end was given.

        Raises:
            RunNotFound: there is no such run.
            ClientError: the run has no stream.
            SerializationError: an entry or an output cannot be read here, such as for want of a value key.
        """
        if not self._is_checked:
            run = yield from self._read_run()
            self._require_stream(run)
            self._is_checked = True
        while not self._reading.is_over:
            with suppress(ServiceUnreachable):  # Postgres was there before: it may only be restarting
                if page := (yield from self._next()):
                    return page
                # After everything is taken, because `take` also clears the signal that woke this reader.
                if self._may_have_ended and self._ended is None:
                    yield from self._read_run()
            if not (yield AwaitNews(self._feed.listening, IDLE_S if self._ended is None else LAST_S)):
                self._is_idle = self._ended is not None
                self._feed.look(with_claims=self._ended is not None)
        return []

    def _read_run(self) -> Operation[RunRecord]:
        self._may_have_ended = False
        run = yield from query(requests.run(self.run_id))
        if run is None:
            raise requests.not_found(self.run_id)
        if run.status in self._until:
            self._ended = run
            self._feed.look(with_claims=True)
        return run

    def _require_stream(self, run: RunRecord) -> None:
        if not (run.settings or {}).get("stream"):
            what = f"run {self.run_id} has no stream"
            way_out = "pass stream=True to `enqueue`, or to its pipeline or its steps; `follow()` yields the events of any run"
            raise ClientError(what, suggestion=way_out, code="NO_STREAM")

    def _next(self) -> Operation[list[StreamEvent]]:
        """Return the events that have come. Entries are kept until a page has them, even if a query raises."""
        if not self._entries and self._look is None:
            taken, self._look = self._feed.take()
            self._entries = [read_entry(*entry) for entry in taken]
        page: list[StreamEvent] = []
        if self._entries:
            rows = yield from self._rows_for(self._entries)
            page, self._entries = [*self._reading.take(self._entries, rows)], ()
            if self._ended is not None:
                self._feed.look(with_claims=True)
        elif self._look is not None:
            page = yield from (self._regain(self._look) if self._ended is None else self._end(self._ended, self._look))
            self._look = None
        return page

    def _rows_for(self, entries: Sequence[StreamEvent]) -> Operation[Rows]:
        places = self._reading.needs(entries)
        steps = [] if places is not None and not places else (yield from query(requests.merged(self.run_id, places)))
        return (yield from _with_outputs(steps))

    def _regain(self, look: StreamLook) -> Operation[list[StreamEvent]]:
        """Go on at the beginning of another epoch, or at the stream's end, if the reader is beyond that."""
        if look.standing != "ahead":
            return []
        rows = yield from _with_outputs((yield from query(requests.merged(self.run_id))))
        at = look.last if look.last.epoch == self._feed.at.epoch else Cursor(look.last.epoch, 0)
        self._feed.restart(at)
        return [*self._reading.gap(at, rows)]

    def _end(self, run: RunRecord, look: StreamLook) -> Operation[list[StreamEvent]]:
        """Return the last events, unless entries are still to come: a worker writes its last ones after its merge, if it does not die."""
        if look.standing == "behind" or (look.claims is None and look.standing != "away"):
            return []
        if run.is_live:
            self._reading.is_over = True
            return []
        page: list[StreamEvent] = []
        steps = yield from query(requests.merged(self.run_id))
        is_unread, claims = self._reading.at == BEGINNING and bool(steps), look.claims or {}
        if not self._is_idle and ((is_unread and not claims) or self._reading.awaits_ends(steps, claims)):
            return []
        if look.standing != "level" or is_unread:
            lost = yield from _with_outputs(steps)
            page += self._reading.gap(look.last if look.standing == "ahead" else self._reading.at, lost)
        rows = yield from _with_outputs([row for row in steps if self._reading.lacks(row)])
        data: dict[str, Any] = {"status": run.status}
        if run.status == "succeeded":
            data["output"] = _plain(run.output, (yield from _blobs([run.output])))
        elif run.error is not None or run.reason is not None:
            data["error"] = run.reason if run.error is None else run.error.feedback
        return [*page, *self._reading.end(data, rows, claims)]


def _with_outputs(steps: Sequence[StepRecord]) -> Operation[Rows]:
    """Read the outputs that rows only refer to."""
    blobs = yield from _blobs([row.output for row in steps if row.status == "succeeded"])
    return Rows(steps, lambda row: _plain(row.output, blobs))


def _blobs(values: Sequence[Packed | None]) -> Operation[Mapping[str, Packed]]:
    digests = {value.digest for value in values if value is not None and value.is_reference}
    return (yield from query(requests.blobs(digests))) if digests else {}


def _plain(value: Packed | None, blobs: Mapping[str, Packed]) -> Any:
    """Return a value as JSON has it, without the classes that it was made of."""
    if value is not None and value.is_reference:
        value = blobs[value.digest]
    return None if value is None else plain(value.tree())


@contextmanager
def reading_stream(
    settings: Settings, run_id: str, after: str | None, until: Collection[str] = ENDED
) -> Iterator[RunStream]:
    """Read a run's stream after a cursor, or from its beginning, until the run has one of these statuses.

    Raises:
        ClientError: `after` is not the cursor of an event of a stream, or there is no Redis.
    """
    at = BEGINNING if after is None else Cursor.parse(after)
    if not settings.has_redis:
        what = f"the stream of run {run_id} cannot be read, for streams are in Redis, and there is none"
        way_out = "set result_backend_url to the workers' Redis; `follow()` yields the events of any run"
        raise ClientError(what, suggestion=way_out, code="NO_STREAM")
    feed = Feed(keys_of(settings.broker_key_prefix, run_id), at)
    stream = RunStream(run_id, feed, until)
    waits = [each for each in LIVE_RUN if each not in until]
    with watch_of(settings.database()).waiting(run_id, waits, stream.notice), hub_of(settings).feeding(feed):
        yield stream
