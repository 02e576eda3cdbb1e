"""Laws of the script that writes streams, on a real Redis: whatever claims, flushes and trims interleave.

In an epoch entries are numbered without a gap. A claim that is over writes nothing. Each open claim that is overtaken is withdrawn once.
"""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_client import Settings
from flujo_client.contract.stream import Cursor, keys_of, read_entry
from flujo_worker.streams import writers
from flujo_worker.streams.writers import StreamWriters
from tests.support.builders import enqueued
from tests.support.fleet import wait_until
from tests.support.services import fresh_redis

PLACES = ("a", "b")
NUMBERS = itertools.count()
CLAIMS = st.tuples(st.integers(1, 3), st.integers(0, 3))
ENDS = ("step_end", "withdrawn")
WRITES = st.tuples(
    st.just("write"),
    st.sampled_from(PLACES),
    CLAIMS,
    st.lists(st.sampled_from(["token", *ENDS]), min_size=1, max_size=3),
)
EMPTY = st.tuples(st.just("empty"), st.sampled_from(PLACES), CLAIMS, st.just([]))
FLUSH = st.tuples(st.just("flush"), st.just(""), st.just((0, 0)), st.just([]))
TRIM = st.tuples(st.just("trim"), st.just(""), st.just((0, 0)), st.just([]))


class Stream:
    """One run's stream, and what must be true of it."""

    def __init__(self, redis, room, run):
        self.redis, self.room, (self.key, self.claims) = redis, room, keys_of("", run)
        first = enqueued().first
        self.first = dataclasses.replace(first, ticket=dataclasses.replace(first.ticket, run=run))
        self.writers, self.written, self.trimmed = {}, 0, 0
        self.now: dict[str, tuple[tuple[int, int], str]] = {}
        """The claim that each place has, and its state."""

    def entries(self):
        return [read_entry(*each) for each in self.redis.xrange(self.key)]

    def apply(self, act, place, claim, kinds):
        if act == "flush":
            self.redis.delete(self.key, self.claims)
            self.now, self.written, self.trimmed = {}, 0, 0
        elif act == "trim":
            self.redis.xtrim(self.key, maxlen=1, approximate=False)
            self.trimmed = max(0, self.written - 1)
        else:
            self.write(place, claim, kinds)
        entries = self.entries()
        cursors = [Cursor.parse(each.cursor) for each in entries]
        assert [each.seq for each in cursors] == list(range(self.trimmed + 1, self.written + 1))
        assert len({each.epoch for each in cursors}) <= 1

    def write(self, place, claim, kinds):
        number, fence = claim
        envelope = dataclasses.replace(self.first, step=place, number=number)
        writer = self.writers.setdefault((place, claim), self.room.writer(envelope, fence))
        before, had_epoch = len(self.entries()), writer.epoch
        [epoch] = self.room._append([(writer, [(kind, {}) for kind in kinds])])
        added = [(each.kind, each.attempt) for each in self.entries()[before:]]
        held, state = self.now.get(place, ((0, 0), "none"))
        if held > claim or (held == claim and state == "closed"):
            assert (epoch, added) == (None, [])
            return
        is_answer = held == (number, 0)
        overtaken = [("withdrawn", held[0])] if state == "open" and held < claim and not is_answer else []
        missed = [("gap", number)] if had_epoch not in (b"", epoch) else []
        assert added == [*overtaken, *missed, *((kind, number) for kind in kinds)]
        self.written += len(added)
        writer.written(epoch)
        self.now[place] = claim, "empty" if not kinds else "closed" if kinds[-1] in ENDS else "open"


def room_of(services, **streams):
    urls = {"database_url": services.database_url, "broker_url": fresh_redis(services)}
    return StreamWriters(Settings.model_validate(urls | {"streams": streams}))


@pytest.fixture(scope="module")
def room(services):
    made = room_of(services)
    yield made
    made.close()


@given(acts=st.lists(st.one_of(WRITES, WRITES, EMPTY, FLUSH, TRIM), max_size=12))
def test_whatever_interleaves_the_laws_of_streams_hold(room, acts):
    stream = Stream(room._redis, room, f"run_{next(NUMBERS)}")
    for act in acts:
        stream.apply(*act)


def test_a_stream_is_bounded_and_expires(services):
    room = room_of(services, max_entries=5, expire_s=60)
    stream = Stream(room._redis, room, "run_bounded")
    room._append([(room.writer(stream.first, 1), [("token", {})] * 1000)])
    assert 5 <= len(stream.entries()) < 250  # Redis drops whole nodes
    assert all(0 < room._redis.pttl(key) <= 60_000 for key in (stream.key, stream.claims))
    room.close()


def test_one_call_writes_for_many_runs_and_a_claim_that_is_over_stops_no_other(room):
    streams = [Stream(room._redis, room, f"run_many_{number}") for number in range(3)]
    batches = [(room.writer(stream.first, 1), [("step_start", {}), ("step_end", {})]) for stream in streams]
    room._append(batches[1:2])
    assert [epoch is None for epoch in room._append(batches)] == [False, True, False]
    assert [[each.kind for each in stream.entries()] for stream in streams] == [["step_start", "step_end"]] * 3


def test_short_steps_of_a_process_share_calls(room, monkeypatch):
    sizes, append = [], room._append
    monkeypatch.setattr(room, "_append", lambda batches: sizes.append(len(batches)) or append(batches))
    monkeypatch.setattr(writers, "BEGIN_S", 60.0)
    streams = [Stream(room._redis, room, f"run_short_{number}") for number in range(100)]
    mine = [room.writer(stream.first, 1) for stream in streams]
    for kind in ("step_start", "step_end"):
        for writer in mine:
            writer.put(kind, {})
    wait_until(lambda: all(len(stream.entries()) == 2 for stream in streams), what=lambda: str(sizes))
    assert (sum(sizes), len(sizes) < 20) == (100, True)


def test_a_step_that_says_nothing_is_seen_to_begin(room):
    stream = Stream(room._redis, room, "run_silent")
    room.writer(stream.first, 1).put("step_start", {})
    wait_until(stream.entries)


def test_a_script_that_redis_has_forgotten_is_loaded_again(room):
    stream = Stream(room._redis, room, "run_again")
    stream.write("a", (1, 1), ["token"])
    stream.redis.script_flush()
    stream.write("a", (1, 1), ["token", "step_end"])
    assert [each.kind for each in stream.entries()] == ["token", "token", "step_end"]


def test_what_is_no_text_is_written_as_events_show_it(room):
    stream = Stream(room._redis, room, "run_odd")
    room._append([(room.writer(stream.first, 1), [("log", {"text": "a\udc80b", "thing": object()})])])
    [entry] = stream.entries()
    assert entry.data == {"text": "a�b", "thing": "<object>"}
