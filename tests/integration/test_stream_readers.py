"""Readers of streams on the real Redis and Postgres: `handle.stream()`, whatever is trimmed, flushed or away."""

import asyncio
import threading

import pytest

from flujo_client import AsyncFlujoClient, Pipeline, Step
from flujo_client.contract.stream import Cursor
from flujo_client.errors import ClientError, FlujoError, RunNotFound
from flujo_client.streams import follow, hub
from flujo_client.streams.follow import RunStream
from tests.support.fleet import PATIENCE_S, wait_until
from tests.support.stream_writer import StreamWriter

pytestmark = pytest.mark.services


def ship(data):
    return data


fine = Pipeline([Step("ship", ship)])


@pytest.fixture
def writer(site):
    return StreamWriter(site, site.client.enqueue(fine, 1))


class Reader:
    """Reads a stream in a thread of its own."""

    def __init__(self, site, run_id, after=None):
        self.events, self.error = [], None
        self._thread = threading.Thread(
            target=self._read, args=(site.client.get_run(run_id).stream(after),), daemon=True
        )
        self._thread.start()

    def _read(self, stream):
        try:
            for event in stream:
                self.events.append(event)
        except FlujoError as error:
            self.error = error

    def has(self, many):
        wait_until(lambda: len(self.events) >= many or self.error, what=lambda: str(self.events))
        return self

    def all(self):
        self._thread.join(PATIENCE_S)
        assert (self._thread.is_alive(), self.error) == (False, None), self.events
        return self.events


def brief(events):
    return [(event.kind, event.text or event.data.get("output")) for event in events]


def finish(writer, text="ab"):
    writer.merge("ship", text)
    writer.write("ship", ("step_end", {}))
    writer.end(output=text)


def test_events_come_in_order_and_the_last_one_is_the_runs_end(site, writer):
    reader = Reader(site, writer.run_id)
    writer.write("ship", ("step_start", {}))
    writer.tokens("ship", "a")
    assert brief(reader.has(2).events) == [("step_start", None), ("token", "a")]
    writer.tokens("ship", "b")
    finish(writer)
    events = reader.all()
    assert brief(events) == [("step_start", None), ("token", "a"), ("token", "b"), ("step_end", "ab"), ("end", "ab")]
    assert events[-2].data["status"] == events[-1].data["status"] == "succeeded"
    assert {(event.step, event.attempt) for event in events[:-1]} == {("ship", 1)}
    cursors = [Cursor.parse(event.cursor) for event in events]
    assert [seq for _, seq in cursors] == [1, 2, 3, 4, 4]


def test_a_cursor_goes_on_behind_its_event(site, writer):
    writer.tokens("ship", "a", "b")
    first = Reader(site, writer.run_id).has(2)
    cursor = first.events[0].cursor
    second = Reader(site, writer.run_id, cursor).has(1)
    finish(writer)
    assert brief(second.all()) == brief(first.all())[1:]
    assert brief(Reader(site, writer.run_id, first.events[-2].cursor).all()) == [("end", "ab")]


def test_a_reader_that_goes_on_gets_the_output_of_a_step_that_is_merged_by_then_and_not_its_text(site, writer):
    writer.tokens("ship", "a", "b")
    writer.tokens("pack", "x", "y")
    cursor = Reader(site, writer.run_id).has(1).events[0].cursor
    writer.write("ship", ("log", {"text": "packed"}))
    finish(writer)
    events = Reader(site, writer.run_id, cursor).all()
    assert [(each.kind, each.step) for each in events if each.step == "ship"] == [("log", "ship"), ("step_end", "ship")]
    assert [each.text for each in events if each.step == "pack"] == ["x", "y", ""]


def test_a_reader_that_goes_on_after_a_snapshot_gets_no_text_of_what_that_had(site, writer):
    writer.tokens("ship", "a")
    first = Reader(site, writer.run_id).has(1)
    writer.merge("ship", "abc")
    writer.write("ship", ("gap", {}))
    snapshot = first.has(3).events[2]
    writer.tokens("ship", "b", "c")
    finish(writer, "abc")
    assert [each.kind for each in first.all()] == ["token", "gap", "snapshot", "end"]
    again = Reader(site, writer.run_id, snapshot.cursor).all()
    assert brief(again) == [("step_end", "abc"), ("end", "abc")]


def test_the_async_handle_streams_the_same(site, writer):
    async def read():
        async with AsyncFlujoClient(site.settings) as client:
            run = await client.get_run(writer.run_id)
            return [event async for event in run.stream()]

    writer.tokens("ship", "a", "b")
    threading.Timer(0.2, finish, [writer]).start()
    assert brief(asyncio.run(read())) == [("token", "a"), ("token", "b"), ("step_end", "ab"), ("end", "ab")]


def test_what_cannot_be_streamed_is_refused_by_name(site):
    run = site.client.enqueue(fine, 1)
    with pytest.raises(ClientError, match="has no stream") as refused:
        next(run.stream())
    assert "stream=True" in refused.value.suggestion
    with pytest.raises(ClientError, match="'12:3' is not the cursor of a stream"):
        next(run.stream("12:3"))
    with pytest.raises(RunNotFound):
        next(type(run)(site.client, type(run._enqueued)("run_none", is_new=False)).stream())


def test_a_flushed_stream_is_a_gap_and_a_snapshot(site, writer):
    writer.tokens("ship", "a", "b")
    reader = Reader(site, writer.run_id).has(2)
    site.redis.flushdb()
    writer.merge("pack", "box")
    writer.tokens("ship", "c")
    last, (gap, snapshot, token) = reader.events[1], reader.has(5).events[2:]
    assert (gap.kind, gap.data["from"], gap.cursor) == ("gap", last.cursor, last.cursor)
    assert (snapshot.kind, token.text) == ("snapshot", "c")
    assert [(each["step"], each["output"]) for each in snapshot.data["steps"]] == [("pack", "box")]
    finish(writer, "abc")
    assert brief(reader.all()[5:]) == [("step_end", "abc"), ("end", "abc")]
    again = Reader(site, writer.run_id, last.cursor).all()
    assert [each.kind for each in again] == ["gap", "snapshot", "end"]


def test_a_foreign_cursor_is_a_gap(site, writer):
    writer.tokens("ship", "a", "b")
    own = Cursor.parse(Reader(site, writer.run_id).has(2).events[-1].cursor)
    finish(writer)
    for cursor in (f"{own.epoch}-99", f"{own.epoch + 1}-1", f"{own.epoch - 1}-7"):
        gap, snapshot, *_, end = Reader(site, writer.run_id, cursor).all()
        assert (gap.kind, gap.data["from"], snapshot.kind, end.kind) == ("gap", cursor, "snapshot", "end")


def test_who_is_ahead_of_a_live_stream_goes_on_with_it(site, writer):
    writer.tokens("ship", "a")
    own = Cursor.parse(Reader(site, writer.run_id).has(1).events[-1].cursor)
    later = (
        Reader(site, writer.run_id, f"{own.epoch}-99").has(2),
        Reader(site, writer.run_id, f"{own.epoch + 9}-1").has(3),
    )
    writer.tokens("ship", "b")
    writer.end("cancelled")
    texts = [[each.text for each in reader.all() if each.text] for reader in later]
    assert texts == [["b"], ["a", "b"]]


@pytest.mark.parametrize("notify", [True, False])
def test_the_end_comes_from_the_row_when_the_stream_is_gone(site, writer, notify):
    writer.tokens("ship", "a")
    reader = Reader(site, writer.run_id).has(1)
    site.redis.flushdb()
    writer.merge("ship", "ab")
    writer.end(output="ab", notify=notify)
    assert [event.kind for event in reader.all()] == ["token", "gap", "snapshot", "end"]


def test_a_run_that_ends_before_anything_of_it_is_written_is_read_whole(site, writer, monkeypatch):
    """A run takes some milliseconds, and so does a worker's first entry."""
    end, looked = RunStream._end, threading.Event()

    def noting(*given):
        looked.set()
        return (yield from end(*given))

    monkeypatch.setattr(RunStream, "_end", noting)
    monkeypatch.setattr(follow, "LAST_S", PATIENCE_S)
    writer.merge("ship", "ab")
    writer.end(output="ab")
    reader = Reader(site, writer.run_id)
    assert looked.wait(PATIENCE_S)
    writer.tokens("ship", "a", "b")
    writer.write("ship", ("step_end", {}))
    assert brief(reader.all()) == [("token", "a"), ("token", "b"), ("step_end", "ab"), ("end", "ab")]


def test_what_was_merged_or_left_without_a_word_is_said_before_the_end(site, writer):
    writer.tokens("ship", "a")
    writer.tokens("pack", "b")
    reader = Reader(site, writer.run_id).has(2)
    writer.merge("ship", "ab")
    writer.end("cancelled")
    assert [(each.kind, each.step, each.data) for each in reader.all()[2:]] == [
        ("step_end", "ship", {"status": "succeeded", "output": "ab"}),
        ("withdrawn", "pack", {}),
        ("end", "", {"status": "cancelled"}),
    ]


def test_readers_share_one_connection_and_a_slow_one_loses_nothing(site, writer, monkeypatch):
    monkeypatch.setattr(hub, "FULL", 20)
    monkeypatch.setattr(hub, "BATCH", 10)
    slow = site.client.get_run(writer.run_id).stream()
    writer.tokens("ship", "0")
    assert next(slow).text == "0"
    readers = [Reader(site, writer.run_id) for _ in range(20)]
    writer.tokens("ship", *map(str, range(1, 300)))
    for reader in readers:
        reader.has(300)
    own = site.redis.client_info()["db"]
    mine = [
        each for each in site.redis.client_list() if each["cmd"].startswith("xread") and int(each["db"]) == int(own)
    ]
    assert len(mine) == 1
    writer.end("cancelled")
    assert [each.text for each in slow][:-2] == [str(at) for at in range(1, 300)]
    for reader in readers:
        assert [each.text for each in reader.all()][:300] == [str(at) for at in range(300)]


def test_a_lost_connection_costs_nothing(site, writer):
    reader = Reader(site, writer.run_id)
    writer.tokens("ship", "0")
    for many in range(1, 4):
        reader.has(many)
        for client in site.redis.client_list():
            if client["cmd"].startswith("xread") and int(client["db"]) == site.redis.get_connection_kwargs()["db"]:
                site.redis.client_kill_filter(_id=client["id"])
        writer.tokens("ship", str(many))
    writer.end("cancelled")
    assert [each.text for each in reader.all()][:4] == ["0", "1", "2", "3"]
