"""Large values without references are deleted, and no others, whatever happens meanwhile."""

from dataclasses import replace
from functools import partial
from hashlib import sha256

import pytest
from test_store_background import launching
from worlds import World, run_of, waits

from flujo_client.serial import Packed, part_key, stored_apart
from flujo_worker.domain.retention import RetentionRule
from flujo_worker.store.postgres.blobs import Recent
from tests.support.builders import enqueued, failed, packed, pipeline_of, succeeded

DAY_S = 86_400.0
LARGE = "".join(sha256(bytes([n])).hexdigest() for n in range(80))
RULES = [RetentionRule("succeeded", 7 * DAY_S), RetentionRule("failed", 7 * DAY_S)]


@pytest.fixture(autouse=True)
def lasting_lease(request):
    """However much time passes."""
    if "world" in request.fixturenames:
        request.getfixturevalue("world").register_worker("w1", lease_s=1e9)


@pytest.fixture
def db(postgres):
    """An empty Postgres, and a store that remembers no values."""
    postgres.empty()
    postgres.stores.blobs._recent = Recent()
    made = World(postgres)
    made.register_worker("w1", lease_s=1e9)
    return made


def swept(world, limit=100):
    """Make one search, from its beginning to its end."""
    world.pass_time(1.0)
    step(world, limit)
    while step(world, limit):
        pass


def step(world, limit=100):
    return world.stores.retention.sweep_blobs(limit, every_s=0.5, unused_s=DAY_S)


def stored(world, text):
    """A large value that is stored and that nothing refers to."""
    value = packed(text)
    world.stores.blobs.store([value])
    return value


def are_there(world, *values):
    """Which of these values can be read; by another process, which remembers none."""
    if hasattr(world.stores.blobs, "_recent"):
        world.stores.blobs._recent = Recent()
    return [each.digest in world.stores.blobs.fetch([each.digest]) for each in values]


def large_run(world, text=LARGE, **order):
    """A run whose input is stored by itself."""
    new = world.record(enqueued(pipeline_of("a", max_retries=0), text, inline=100, **order))
    assert len(new.blobs) == 1
    return new


def test_what_nothing_refers_to_goes_once_it_is_a_day_old(world):
    unused = stored(world, "unused " + LARGE)
    swept(world)
    assert are_there(world, unused) == [True]
    world.pass_time(2 * DAY_S)
    young = stored(world, "young " + LARGE)
    swept(world)
    assert are_there(world, unused, young) == [False, True]


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_what_a_run_refers_to_stays_as_long_as_the_run(world, limit):
    """Input, output, context and checkpoints; of live runs and ended ones."""
    inputs = [large_run(world, f"{n} {LARGE}") for n in range(4)]
    output, context = (stored(world, f"{name} {LARGE}") for name in ("output", "context"))
    given = replace(succeeded(), output=output.reference(), context=context.reference())
    assert world.conclude(inputs[0], given, fence=world.claim(inputs[0])) == "merged"
    unused = stored(world, "unused " + LARGE)
    values = [*(new.blobs[0] for new in inputs), output, context]
    for _ in range(3):
        world.pass_time(3 * DAY_S)
        swept(world, limit)
        assert are_there(world, *values) == [True] * 6
    assert are_there(world, unused) == [False]
    assert world.stores.retention.prune_runs(RULES, 100) == [run_of(inputs[0])]
    world.pass_time(2 * DAY_S)
    swept(world, limit)
    assert are_there(world, *values) == [False, True, True, True, False, False]


def test_what_two_runs_share_stays_until_both_are_gone(world):
    first, second = large_run(world), large_run(world)
    world.stores.backlog.stop(run_of(first), "failed", "enough")
    world.pass_time(8 * DAY_S)
    world.stores.backlog.stop(run_of(second), "failed", "enough")
    assert world.stores.retention.prune_runs(RULES, 100) == [run_of(first)]
    swept(world)
    assert are_there(world, first.blobs[0]) == [True]
    world.pass_time(8 * DAY_S)
    assert world.stores.retention.prune_runs(RULES, 100) == [run_of(second)]
    world.pass_time(2 * DAY_S)
    swept(world)
    assert are_there(world, first.blobs[0]) == [False]


def test_one_search_follows_another_after_its_time_alone(world):
    unused = stored(world, LARGE)
    world.pass_time(2 * DAY_S)
    search = partial(world.stores.retention.sweep_blobs, 100, every_s=DAY_S, unused_s=DAY_S)
    while search():
        pass
    assert are_there(world, unused) == [False]
    later = stored(world, LARGE)
    world.pass_time(0.9 * DAY_S)
    assert not search()
    assert are_there(world, later) == [True]


def in_parts(*texts):
    """A value of more than 256 KB whose texts are separate parts."""
    value = Packed.of({str(place): text for place, text in enumerate(texts)})
    assert len(value.parts) > 1
    return value


def test_the_parts_of_a_value_stay_with_it_and_go_with_it(db):
    common, own, other = ("".join(f"{name} {n:06} " for n in range(20_000)) for name in ("common", "own", "other"))
    used, unused = in_parts(common, own), in_parts(common, other)
    db.stores.blobs.store([used, unused])
    new = db.record(enqueued(pipeline_of("a")))
    given = replace(succeeded(), output=used.reference())
    assert db.conclude(new, given, fence=db.claim(new)) == "merged"
    db.pass_time(2 * DAY_S)
    swept(db)
    assert are_there(db, used, unused) == [True, False]
    left = {row["digest"] for row in db.setting.rows("SELECT digest FROM flujo_blobs")}
    assert left == {used.digest, *stored_apart(used)}
    assert all(part_key(part) in left for part in used.parts if part_key(part) in stored_apart(used))


def old_and_unused(db, value):
    """A value that the search under way is about to delete."""
    db.stores.blobs.store([value])
    db.pass_time(3 * DAY_S)
    db.pass_time(1.0)
    assert step(db)
    while db.setting.rows("SELECT 1 FROM flujo_sweeps WHERE marked_to IS NOT NULL"):
        step(db)


def test_a_value_that_is_enqueued_at_that_moment_stays(db, race, no_deadlock):
    for n in range(8):
        new = enqueued(pipeline_of("a"), f"{n} {LARGE}", inline=100)
        old_and_unused(db, new.blobs[0])
        race(partial(db.record, new), partial(step, db))
        assert are_there(db, new.blobs[0]) == [True]
        finish(db)


def test_a_value_that_a_worker_stores_at_that_moment_stays(db, race, no_deadlock):
    for n in range(8):
        value = packed(f"{n} {LARGE}")
        old_and_unused(db, value)
        race(partial(db.stores.blobs.store, [value]), partial(step, db))
        assert are_there(db, value) == [True]
        finish(db)


def test_a_part_that_a_worker_shares_at_that_moment_stays(db, race, no_deadlock):
    """It remembers the part and stores only a manifest that names it."""
    for n in range(8):
        common = "".join(f"{n} {each:06} " for each in range(30_000))
        first, second = in_parts(common, "first " * 2_000), in_parts(common, "second " * 2_000)
        old_and_unused(db, first)
        race(partial(db.stores.blobs.store, [second]), partial(step, db))
        assert are_there(db, second) == [True]
        finish(db)


def finish(db):
    while step(db):
        pass
    db.setting.execute("UPDATE flujo_sweeps SET marking_since = '-infinity', marked_to = NULL, swept_to = NULL")


def test_a_part_is_not_taken_for_present_while_it_is_being_deleted(db, held):
    """Whoever shares it waits for the deletion, and stores it again."""
    common = "".join(f"{each:06} " for each in range(40_000))
    first, second = in_parts(common, "first " * 2_000), in_parts(common, "second " * 2_000)
    old_and_unused(db, first)
    held.execute("DELETE FROM flujo_blobs")
    storing = waits(held.info.dsn, partial(db.stores.blobs.store, [second]))
    held.commit()
    storing.result(timeout=60)
    assert are_there(db, second) == [True]


def test_what_a_fork_took_over_stays_when_its_first_run_goes_before_it_was_marked(db):
    """The fork begins behind the search, the first run goes in front of it."""
    old = large_run(db)
    assert db.conclude(old, failed(retryable=False), fence=db.claim(old)) == "merged"
    db.pass_time(9 * DAY_S)
    begin(db)
    new = db.forked(run_of(old), "a", run_id="run_0000000000000000000000000000")
    assert db.fork(new) == "run_0000000000000000000000000000"
    assert db.stores.retention.prune_runs(RULES, 100) == [run_of(old)]
    while step(db):
        pass
    assert are_there(db, old.blobs[0]) == [True]


def begin(db):
    db.setting.execute("UPDATE flujo_sweeps SET marking_since = now(), marked_to = '', swept_to = ''")


def test_a_value_that_someone_holds_is_marked_another_time(db, held):
    """The search waits for no one, and continues when it could mark all."""
    new = large_run(db)
    db.pass_time(3 * DAY_S)
    begin(db)
    held.execute("SELECT 1 FROM flujo_blobs FOR UPDATE")
    assert not step(db)
    held.rollback()
    while step(db):
        pass
    assert are_there(db, new.blobs[0]) == [True]


def test_what_a_run_in_the_background_refers_to_stays(world):
    new = world.record(enqueued(pipeline_of("a", "mail")))
    value = stored(world, LARGE)
    decision = launching(new.first, fence=world.claim(new))
    child = replace(decision.child_run, first=replace(decision.child_run.first, context=value.reference()))
    assert world.commit(replace(decision, child_run=child)) == "merged"
    world.pass_time(3 * DAY_S)
    swept(world)
    assert are_there(world, value) == [True]
