"""A row that cannot be read fails its own run, with a reason, and delays no other."""

import pytest
from damage_engine import Engine
from trees import fanned_out
from worlds import MAX_LOST, run_of

from flujo_client.contract.outcome import Event, Fault
from flujo_worker.errors import Unreadable
from flujo_worker.ports import BrokerSnapshot, ClaimId
from tests.support.builders import decided, enqueued, failed, pipeline_of, succeeded

FAULT = Fault("system", "Unreadable", "no", "no")
TOLD = Event("run.unreadable", {"reason": "no"}, "error")


@pytest.fixture(scope="module")
def engine(migrated_url):
    engine = Engine(migrated_url)
    yield engine
    engine.close()


@pytest.fixture
def started_run(engine):
    """A run, its first step done, and a worker that has read nothing of it yet."""
    engine.empty()
    run = engine.enqueue("damage_pipelines:onlooker")
    engine.deliver()
    engine.begin()
    return run


def ended(engine, run):
    [row] = engine.rows.rows(
        "SELECT status, reason, error->>'code' AS code FROM flujo_runs WHERE id = %(run)s", run=run
    )
    return row


pytestmark = pytest.mark.services

DAMAGES = {
    "scope": ("DELETE FROM flujo_scopes", "it cannot continue: no attempt is live|its scope or its run"),
    "attempts": ("DELETE FROM flujo_attempts WHERE status <> 'succeeded'", "it cannot continue: no attempt is live"),
    "lanes": ("UPDATE flujo_scopes SET lanes = '[]'", "a list instead of a mapping"),
    "limits": ("UPDATE flujo_runs SET limits = '[]'", "a list instead of a mapping"),
    "key": ("UPDATE flujo_attempts SET key = 'x' WHERE status <> 'succeeded'", "its columns make the key"),
    "input": (r"UPDATE flujo_scopes SET output = '\x6a7b'", "not JSON"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_run_that_no_one_can_carry_on_fails_and_says_what_is_wrong(engine, started_run, name):
    statement, said = DAMAGES[name]
    engine.rows.execute(statement)
    engine.bus.messages.clear()
    for _ in range(12):
        if ended(engine, started_run)["status"] == "failed":
            break
        engine.recover()
    row = ended(engine, started_run)
    assert (row["status"], row["code"]) == ("failed", "UNREADABLE")
    [event] = [each for each in engine.rows.read_events(started_run) if each.name == "run.unreadable"]
    assert event.data == {"reason": row["reason"]}
    assert any(part in row["reason"] for part in said.split("|"))


@pytest.mark.parametrize("plan", ["'{}'", "jsonb_set(plan, '{version}', '\"2\"')"])
def test_a_stored_plan_that_cannot_be_read_harms_no_run_whose_code_is_here(engine, started_run, plan):
    engine.rows.execute(f"UPDATE flujo_pipelines SET plan = {plan}")
    engine.recover()
    assert ended(engine, started_run)["status"] == "succeeded"


def test_one_row_that_cannot_be_read_keeps_no_other_from_being_published(engine):
    engine.empty()
    runs = [engine.enqueue("damage_pipelines:onlooker") for _ in range(3)]
    engine.bus.messages.clear()
    engine.rows.rows("UPDATE flujo_scopes SET output = '' WHERE run_id = %(run)s RETURNING 1", run=runs[1])
    engine.rows.pass_time(100.0)
    damaged = []
    due = engine.stores.backlog.due(
        BrokerSnapshot(0.0, {}), judge="w", max_lost=MAX_LOST, limit=9, damaged=lambda *row: damaged.append(row)
    )
    assert [each.envelope.ticket.run for each in due] == [runs[0], runs[2]]
    assert [row[0] for row in damaged] == [runs[1]]


def test_a_lost_row_that_cannot_be_read_is_told_of_with_its_fence(engine):
    engine.empty()
    run = engine.enqueue("damage_pipelines:onlooker")
    engine.rows.execute(
        "UPDATE flujo_attempts SET status = 'running', losses = 9, losses_alone = 9, worker = NULL, fence = 4; UPDATE flujo_runs SET status = 'running'; "
        "UPDATE flujo_scopes SET output = ''"
    )
    damaged = []
    assert (
        engine.stores.backlog.poisoned(judge="w", max_lost=2, limit=9, damaged=lambda *row: damaged.append(row)) == []
    )
    [(told, _, fence, error)] = damaged
    assert (told, fence, type(error)) == (run, 5, Unreadable)


@pytest.mark.parametrize("claims", [True, False])
def test_a_run_is_broken_off_whether_it_has_begun_or_not(world, claims):
    new = world.record(enqueued())
    if claims:
        world.claim(new)
    assert world.stores.attempts.break_off(run_of(new), FAULT, TOLD, ClaimId(new.first.key))
    assert world.stores.backlog.stop(run_of(new), "failed", "no")
    run = world.run(run_of(new))
    assert (run.status, run.reason, run.error) == ("failed", "no", FAULT)
    assert ("run.unreadable", new.first.key) in [(each.name, each.attempt) for each in world.events(run_of(new))]


def test_with_a_fence_it_is_broken_off_only_by_who_holds_the_attempt(world):
    new = world.record(enqueued())
    fence = world.claim(new)
    assert not world.stores.attempts.break_off(run_of(new), FAULT, at=ClaimId(new.first.key, fence + 1))
    assert world.stores.attempts.break_off(run_of(new), FAULT, at=ClaimId(new.first.key, fence))


def test_no_run_that_can_move_is_stranded(world):
    waiting, fanned = world.record(enqueued(pipeline_of("a", "b"))), fanned_out(world, 3, lanes=1)
    world.conclude(waiting, succeeded(), fence=world.claim(waiting))
    over = world.record(enqueued())
    world.commit(decided(over, failed(retryable=False), fence=world.claim(over)))
    assert fanned
    assert world.stores.scopes.stranded(9) == []
