"""Schedules in every store: each slot fires once, in order, whoever sweeps and wherever the clock jumps (ADR 60)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from worlds import ROUNDS, Postgres, World

from flujo_client import Schedule
from flujo_client.contract.schedules import ScheduleRecord, due_at
from flujo_client.errors import ServiceUnreachable
from flujo_client.gateway import schedule_requests
from flujo_worker.changed_code.code_registry import CodeRegistry
from flujo_worker.domain.schedules import AGAIN_S, Fired
from flujo_worker.recovery.schedules import ScheduleFiring
from flujo_worker.store.postgres.statements import execute
from flujo_worker.store.postgres.stores import PostgresStores
from tests.support.builders import enqueued, packed

PIPELINE = "tests.conformance.test_store_schedules:fine"
BODY = packed({"input": "in", "options": {"metadata": {"for": "ana"}}})
MINUTE = timedelta(minutes=1)


class Clocked(Postgres):
    """A real one whose clock can be moved."""

    def pass_time(self, seconds):
        self._connection.execute("UPDATE flujo_clock.clock SET ahead = ahead + make_interval(secs => %s)", [seconds])

    def now(self):
        return float(self.rows("SELECT extract(epoch FROM now())::float8 AS now")[0]["now"])


@pytest.fixture(scope="module")
def postgres(database_url):
    """A migrated database with a clock of its own, and its store."""
    with psycopg.connect(database_url, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:
        execute(connection, "clock/install", {})
    stores = PostgresStores(database_url).open()
    setting = Clocked(stores, database_url)
    yield setting
    setting.close()
    stores.close()


def moment(world):
    return datetime.fromtimestamp(world.now(), UTC)


def begin_a_minute(world):
    """Pass the time to a second after a full minute, so that none is passed by the test itself."""
    world.pass_time(-world.now() % 60 + 1)


def add(world, **given):
    schedule = Schedule(
        **{"name": "each", "pipeline": PIPELINE, "every_s": 60, "overlap": "allow", "catch_up": "all"} | given
    )
    slot = schedule.timing.after(moment(world))
    if hasattr(world.setting, "ask"):
        world.setting.ask(schedule_requests.add(schedule, enqueued(), BODY, slot))
        return
    kept = {name: getattr(schedule, name) for name in ("name", "timing", "tenant", "overlap", "catch_up")}
    due = due_at(schedule.name, slot, schedule.timing)
    world.stores.schedules.add(
        ScheduleRecord(**kept, reference="shapes:pipeline", is_paused=False, slot_at=slot, due_at=due), BODY
    )


def row(world, name="each"):
    """A schedule's row, due or not."""
    if hasattr(world.setting, "ask"):
        return world.setting.ask(schedule_requests.schedules(name))[0]
    return world.stores.schedules.rows[name].record


class Sweeps:
    """A worker that fires schedules; it notes the ids of the runs that it enqueues, and records them."""

    def __init__(self, world):
        self.world, self.fired, self.fails, self.may_load = world, [], None, True
        catalog = CodeRegistry(["*"], lambda _: None)
        catalog.here = lambda *_: None
        self.firing = ScheduleFiring(world.stores.schedules, catalog, ["*"], lambda *_: self.may_load, self.enqueue)

    def enqueue(self, pipeline, /, *, value, run_id, metadata, **_):
        if self.fails is not None:
            raise self.fails
        assert (pipeline, value, metadata["for"]) == ("shapes:pipeline", "in", "ana")
        self.fired.append(run_id)
        self.world.record(enqueued(value=value, run_id=run_id))
        return run_id

    def fire(self):
        self.firing.fire(self.world.stores.schedules.due(100))


@pytest.fixture
def sweeps(world):
    return Sweeps(world)


def minutes(fired):
    """The slots that fired, as minutes since 1970."""
    return [datetime.strptime(each, "each.%Y%m%dT%H%M%S%z").timestamp() // 60 for each in fired]


def test_nothing_fires_before_its_time_and_each_slot_fires_in_order(world, sweeps):
    begin_a_minute(world)
    add(world)
    sweeps.fire()
    assert sweeps.fired == []
    world.pass_time(240)
    sweeps.fire()
    sweeps.fire()
    first, *_ = found = minutes(sweeps.fired)
    assert found == [first + n for n in range(4)]
    assert (row(world).last_run, row(world).last_error) == (sweeps.fired[-1], None)


@pytest.mark.parametrize(("policy", "count"), [("none", 1), ("last", 1), ("all", 100)])
def test_after_a_day_without_workers_the_policy_bounds_what_is_made_up_for(world, sweeps, policy, count):
    """One slot of the last minute fires in any case."""
    add(world, catch_up=policy)
    world.pass_time(86_400)
    before = moment(world)
    sweeps.fire()
    assert len(sweeps.fired) == count
    assert row(world).slot_at > before  # the next minute may have begun meanwhile


def test_an_hourly_slot_that_was_missed_fires_only_if_it_is_made_up_for(world, sweeps):
    add(world, every_s=3600, catch_up="none")
    world.pass_time(row(world).slot_at.timestamp() - world.now() + 600)
    sweeps.fire()
    assert sweeps.fired == []
    add(world, every_s=7200, catch_up="last")
    world.pass_time(row(world).slot_at.timestamp() - world.now() + 600)
    sweeps.fire()
    assert len(sweeps.fired) == 1


def test_a_clock_that_jumps_both_ways_fires_each_slot_once(world, sweeps):
    """Nothing fires until the clock has come to where it was."""
    add(world)
    for jump in (120, 3600, -1800, 60, -7200, 5400, 3600, 7200):
        world.pass_time(jump)
        sweeps.fire()
    found = minutes(sweeps.fired)
    assert found == sorted(set(found))
    assert len(found) > 150


def test_a_replaced_schedule_keeps_its_next_slot_unless_its_timing_changes(world, sweeps):
    add(world)
    world.pass_time(180)
    before = row(world).slot_at
    add(world, tenant="acme")
    assert (row(world).slot_at, row(world).tenant) == (before, "acme")
    add(world, every_s=120)
    assert row(world).slot_at > moment(world)


def test_a_slot_that_fails_is_tried_for_a_minute_and_then_the_next_one_comes(world, sweeps):
    add(world, every_s=3600, catch_up="none")
    world.pass_time(row(world).slot_at.timestamp() - world.now() + 1)
    sweeps.fails = RuntimeError("the module is broken")
    slot = row(world).slot_at
    sweeps.fire()
    assert (row(world).last_error, row(world).slot_at) == ("the module is broken", slot)
    sweeps.fire()
    assert world.stores.schedules.due(9) == []
    for _ in range(13):
        world.pass_time(AGAIN_S)
        sweeps.fire()
    assert (row(world).last_error, row(world).last_run) == ("the module is broken", None)
    assert row(world).slot_at > moment(world)
    sweeps.fails = None
    world.pass_time(row(world).slot_at.timestamp() - world.now() + 1)
    sweeps.fire()
    assert (len(sweeps.fired), row(world).last_error, row(world).last_run) == (1, None, sweeps.fired[0])


def test_code_that_is_still_being_tried_costs_no_slot_and_is_no_error(world, sweeps):
    add(world, every_s=3600, catch_up="none")
    world.pass_time(row(world).slot_at.timestamp() - world.now() + 1)
    sweeps.may_load = False
    for _ in range(3):
        sweeps.fire()
        world.pass_time(1)
    assert (sweeps.fired, row(world).last_error) == ([], None)
    sweeps.may_load = True
    sweeps.fire()
    assert len(sweeps.fired) == 1


def test_a_row_that_this_worker_cannot_read_shows_that_and_delays_no_other(world, sweeps):
    """A time zone that only the client knew, and a damaged body."""
    add(world)
    slot = row(world).slot_at
    add(world, name="other", every_s=60)
    world.pass_time(120)
    other = row(world, "other")
    [first, *_] = [each for each in world.stores.schedules.due(9) if each.record.name == "each"]
    timing = replace(first.record.timing, every_s=None, cron="* * * * *", zone="Europe/Atlantis")
    for broken in (replace(first, record=replace(first.record, timing=timing)), replace(first, body=b"?")):
        found = sweeps.firing._fire(broken)
        assert (found.next_slot, found.again_s) == (slot, AGAIN_S)
        assert found.error
    sweeps.fire()
    assert row(world, "other").slot_at > other.slot_at


def test_services_that_are_away_cost_no_slot(world, sweeps):
    begin_a_minute(world)
    add(world)
    world.pass_time(60)
    sweeps.fails = ServiceUnreachable("Redis is away")
    with pytest.raises(ServiceUnreachable):
        sweeps.fire()
    assert (row(world).last_error, row(world).last_slot) == (None, None)
    sweeps.fails = None
    sweeps.fire()
    assert len(sweeps.fired) == 1


def test_a_row_is_moved_on_only_from_the_slot_that_was_read(world, sweeps):
    add(world)
    world.pass_time(60)
    [due] = world.stores.schedules.due(9)
    assert world.stores.schedules.advance(due, Fired(due.record.slot_at + MINUTE))
    assert not world.stores.schedules.advance(due, Fired(due.record.slot_at + 5 * MINUTE))
    assert row(world).slot_at == due.record.slot_at + MINUTE


@pytest.mark.services
def test_two_sweepers_at_once_fire_each_slot_once(postgres, race, settings_of_threads):
    for _ in range(ROUNDS):
        postgres.empty()
        world = World(postgres)
        begin_a_minute(world)
        add(world)
        world.pass_time(300)
        due = [Sweeps(world), Sweeps(world)]
        for each in due:
            each.world = InThread(settings_of_threads)
        race(*(each.fire for each in due))
        runs = [each["id"] for each in postgres.rows("SELECT id FROM flujo_runs ORDER BY id")]
        first, *_ = found = minutes(runs)
        assert found == [first + n for n in range(5)]
        assert row(world).last_run == runs[-1]


class InThread:
    """The database over a connection of the thread's own."""

    def __init__(self, settings_of_threads):
        self._setting = settings_of_threads

    @property
    def stores(self):
        return self._setting().stores

    def record(self, new):
        self._setting().record(new)
