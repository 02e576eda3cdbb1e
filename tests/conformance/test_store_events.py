"""Events in every store: of runs and of workers, retained as configured, and read from a cursor without gaps."""

import datetime as dt
import time

import psycopg
import pytest

from flujo_client.contract.outcome import Event
from flujo_client.errors import ClientError
from flujo_client.gateway import requests
from flujo_worker.store.migrate import migrate
from tests.support.builders import enqueued, pipeline_of
from tests.support.services import drop_database, fresh_database

DAY_S = 86_400.0


@pytest.fixture(scope="module")
def services(services_to_break):
    """A server of its own: a cursor waits for the transactions of all databases, other tests' among them."""
    return services_to_break


@pytest.fixture
def new(world):
    return world.record(enqueued(pipeline_of("a", "b")))


def names(events):
    return [event.name for event in events]


def test_what_is_told_of_workers_belongs_to_no_run(world, new):
    """SYS-21: it has the time at which it was told, not at which it was written."""
    happened_at = world.now() - 60
    world.stores.records.note(
        None, [Event("worker.started", {"worker": "w1"}, at=happened_at), Event("late", level="warning")]
    )
    first, second = world.system_events()
    assert (first.name, first.data, first.run_id, first.level) == ("worker.started", {"worker": "w1"}, None, "info")
    assert abs(first.at.timestamp() - happened_at) < 0.001
    assert (second.name, second.level) == ("late", "warning")
    assert world.events(new.first.ticket.run) == []


def test_what_is_kept_no_longer_is_dropped(world, new):
    """SYS-21: whole days, by the time at which something was told; nothing else goes with them."""
    now = world.now()
    run = new.first.ticket.run
    world.stores.records.note(None, [Event("old", at=now - 4 * DAY_S), Event("young", at=now - 2 * DAY_S)])
    world.stores.records.note(run, [Event("old", at=now - 4 * DAY_S), Event("young", at=now)])
    world.stores.retention.rotate_event_partitions(None)
    assert names(world.system_events()) == ["old", "young"]
    world.stores.retention.rotate_event_partitions(3)
    assert names(world.system_events()) == ["young"]
    assert names(world.events(run)) == ["young"]
    assert world.run(run).status == "queued"


def test_what_a_sweep_found_lost_is_told(world, new):
    """M-168: who had it, and how often that was so; a message that was only lost is told as that."""
    world.stores.backlog.mark_sent({new.first.key: 0.0})
    assert [due.why for due in world.due(epoch=world.now() + 60)] == ["epoch"]
    world.claim(new)
    world.stores.leases.deregister_worker("w1")
    assert [due.why for due in world.due()] == ["lost"]
    again, lost = world.events(new.first.ticket.run)
    assert (again.name, again.level, again.attempt) == ("attempt.sent_again", "info", new.first.key)
    assert again.data == {"why": "epoch", "sends": 2}
    assert (lost.name, lost.level, lost.data) == (
        "attempt.lost",
        "warning",
        {"worker": "w1", "losses": 1, "losses_alone": 0},
    )


def test_what_is_due_by_its_own_clock_is_no_news(world, new):
    world.pass_time(60)
    assert [due.why for due in world.due()] == ["ready"]
    assert world.events(new.first.ticket.run) == []


@pytest.mark.services
def test_a_new_database_has_todays_partition(services):
    url = fresh_database(services)
    migrate(url)
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO flujo_events (name) VALUES ('now')")
        [(table,)] = connection.execute("SELECT tableoid::regclass::text FROM flujo_events").fetchall()
    drop_database(services, url)
    assert table == named(dt.datetime.now(dt.UTC).date())


def partitions(postgres):
    rows = postgres.rows(
        "SELECT c.relname AS name FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
        " WHERE i.inhparent = 'flujo_events'::regclass AND c.relname ~ '[0-9]{8}$' ORDER BY 1"
    )
    return [row["name"] for row in rows]


def named(day):
    return f"flujo_events_{day:%Y%m%d}"


@pytest.fixture
def clean(postgres):
    postgres.empty()
    for name in partitions(postgres):
        postgres.execute(f'DROP TABLE "{name}"')
    return postgres


@pytest.mark.services
def test_the_days_to_come_have_partitions_before_they_begin(clean):
    """SYS-21: and what is told of them stands there, not in the default one. Making them twice makes them once."""
    today = dt.datetime.now(dt.UTC).date()
    clean.stores.retention.rotate_event_partitions(30)
    clean.stores.retention.rotate_event_partitions(30)
    assert partitions(clean) == [named(today + dt.timedelta(n)) for n in range(2, 8)]
    clean.stores.records.note(
        None, [Event("soon", at=time.time() + 2 * DAY_S), Event("yesterday", at=time.time() - DAY_S)]
    )
    stood = clean.rows("SELECT tableoid::regclass::text AS table, name FROM flujo_events ORDER BY id")
    assert [(row["table"], row["name"]) for row in stood] == [
        (named(today + dt.timedelta(2)), "soon"),
        ("flujo_events_default", "yesterday"),
    ]


@pytest.mark.services
def test_a_day_whose_events_stand_in_the_default_partition_stays_there(clean):
    """There is always a place: what was told before there was a partition is neither lost nor in the way."""
    soon = time.time() + 2 * DAY_S
    clean.stores.records.note(None, [Event("early", at=soon)])
    clean.stores.retention.rotate_event_partitions(30)
    today = dt.datetime.now(dt.UTC).date()
    assert partitions(clean) == [named(today + dt.timedelta(n)) for n in range(3, 8)]
    clean.stores.records.note(None, [Event("later", at=soon)])
    assert [row["name"] for row in clean.rows("SELECT name FROM flujo_events_default ORDER BY id")] == [
        "early",
        "later",
    ]


@pytest.mark.services
def test_days_that_are_over_are_dropped_as_a_whole(clean):
    clean.stores.retention.rotate_event_partitions(None)
    today = dt.datetime.now(dt.UTC).date()
    for days in (2, 3, 4):
        day = today - dt.timedelta(days)
        clean.execute(
            f"CREATE TABLE {named(day)} PARTITION OF flujo_events FOR VALUES FROM ('{day} 00:00+00') TO ('{day + dt.timedelta(1)} 00:00+00')"
        )
    clean.stores.retention.rotate_event_partitions(3)
    assert partitions(clean)[:3] == [
        named(today - dt.timedelta(3)),
        named(today - dt.timedelta(2)),
        named(today + dt.timedelta(2)),
    ]


@pytest.mark.services
def test_who_finds_the_table_locked_leaves_it_to_the_next_time(clean, held):
    """A reader of the default partition holds nothing up: within half a second the sweep continues, and makes them later."""
    held.execute("SELECT count(*) FROM flujo_events_default")
    started = time.monotonic()
    clean.stores.retention.rotate_event_partitions(30)
    assert time.monotonic() - started < 5
    assert partitions(clean) == []
    held.commit()
    clean.stores.retention.rotate_event_partitions(30)
    assert len(partitions(clean)) == 6


@pytest.mark.services
def test_a_cursor_never_passes_what_is_still_being_written(clean, held):
    """SYS-21: the lower id is committed later; who reads on from a cursor sees both, each once, in one order."""
    new = enqueued(pipeline_of("a"))
    clean.record(new)
    run = new.first.ticket.run
    [begun] = clean.ask(requests.events(run))
    tell = "INSERT INTO flujo_events (run_id, name) VALUES (%s, %s)"
    held.execute(tell, [run, "slow"])
    clean.stores.records.note(run, [Event("quick")])
    assert clean.ask(requests.events(run, after=begun.cursor)) == []
    assert names(clean.ask(requests.events(run, after=begun.cursor, settled=False))) == ["quick"]
    held.commit()
    both = clean.ask(requests.events(run, after=begun.cursor))
    assert names(both) == ["slow", "quick"]
    assert names(clean.ask(requests.events(run, after=both[0].cursor))) == ["quick"]
    assert clean.ask(requests.events(run, after=both[1].cursor)) == []


@pytest.mark.services
def test_a_long_transaction_of_someone_else_holds_no_one_up_for_long(clean, held):
    new = enqueued(pipeline_of("a"))
    clean.record(new)
    run = new.first.ticket.run
    held.execute("SELECT pg_current_xact_id()")
    clean.stores.records.note(run, [Event("quick")])
    assert names(clean.ask(requests.events(run))) == ["run.enqueued"]
    clean.execute("UPDATE flujo_events SET written_at = written_at - interval '11 s'")
    assert names(clean.ask(requests.events(run))) == ["run.enqueued", "quick"]


@pytest.mark.services
def test_the_story_of_a_run_that_has_ended_is_whole(clean, held):
    new = enqueued(pipeline_of("a"))
    clean.record(new)
    run = new.first.ticket.run
    held.execute("SELECT pg_current_xact_id()")
    clean.stores.backlog.stop(run, "cancelled", "enough")
    assert names(clean.ask(requests.events(run))) == ["run.enqueued", "run.cancelled"]


@pytest.mark.services
def test_events_of_a_dump_come_before_new_ones(clean):
    """A dump has the numbers of another server's transactions, which are far ahead of this one's; `flujo migrate` puts them into order."""
    runs = [enqueued(pipeline_of("a")) for _ in range(2)]
    for new in runs:
        clean.record(new)
    live, ended = (new.first.ticket.run for new in runs)
    clean.stores.backlog.stop(ended, "cancelled", "enough")
    clean.stores.records.note(live, [Event("ahead")])
    clean.execute(
        "UPDATE flujo_events SET xid = (xid::text::bigint + 10 ^ 12)::text::xid8 WHERE name <> 'run.enqueued'"
    )
    clean.stores.records.note(live, [Event("new")])
    migrate(clean.url)
    clean.stores.records.note(live, [Event("newer")])
    found = clean.ask(requests.events(live, settled=False))
    assert names(found) == ["run.enqueued", "ahead", "new", "newer"]
    assert names(clean.ask(requests.events(live, after=found[1].cursor, settled=False))) == ["new", "newer"]
    assert names(clean.ask(requests.events(ended))) == ["run.enqueued", "run.cancelled"]


def test_what_is_no_cursor_is_refused_by_name():
    with pytest.raises(ClientError, match="'12' is not the cursor of an event"):
        requests.events("r", after="12")
