"""Runs in the background: begun in one commit with the step that continues, and no one's but their own from then on (SYS-31, U-16)."""

from dataclasses import replace

import psycopg
import pytest
from trees import concluded, moved, opening
from worlds import World

from flujo_client.contract.outcome import Fault
from flujo_client.contract.records import BackgroundRestart
from flujo_client.errors import RunNotFound
from flujo_client.gateway import requests
from flujo_worker.domain.values import ChildRun, EndRun, NextAttempt
from flujo_worker.store.shared_rules import GRACE_S
from tests.support.builders import SPENT, enqueued, failed, packed, pipeline_of, succeeded

BOX, ROOT = "mail", "mail/body"
FAULT = Fault("agent", "ValueError", "no", "it broke")
STALE = Fault("system", "ExecutionError", "no sign of life", "no sign of life", code="BACKGROUND_STALE")
LIMITS = {"run": "", "limits": {"total_cost_usd_limit": 1.0, "total_tokens_limit": 10}, "tenant": "", "task": BOX}
DAY_S = 86_400.0


def launching(at, *, fence=1, box=BOX, **rest):
    """The decision of an attempt that comes to a step in the background, and ends its run."""
    root, run = f"{box}/body", f"{at.ticket.run}.{box}"
    first = NextAttempt(root, "x", 1, "mail.q", packed("in"), packed({"n": 7}), 0)
    ticket = replace(at.ticket, run=run, root=root, deadline=None, limits={**LIMITS, "run": run})
    closed = opening(box, at.address, kind="background", step=box, name=box, status="succeeded", context=None)
    end = moved(at, cursor=2, status="succeeded", merges=True)
    return concluded(
        at,
        end,
        fence=fence,
        opens=(closed,),
        child_run=ChildRun(ticket, None, box, first),
        end=EndRun("succeeded", output=packed("in")),
        **rest,
    )


@pytest.fixture
def new(world):
    return world.record(enqueued(pipeline_of("a", BOX), deadline=world.now() + 600, tenant="acme", queue="mine"))


@pytest.fixture
def task(world, new):
    """The first attempt of a run in the background that was launched."""
    decision = launching(new.first, fence=world.claim(new))
    assert world.commit(decision) == "merged"
    return first_of(world, new, decision)


def first_of(world, new, decision):
    ticket = decision.child_run.ticket
    key = replace(new.first, ticket=ticket, address=ticket.root, step="x", number=1).key
    [envelope] = world.stores.backlog.envelopes([key])
    return envelope


def end(world, at, status="succeeded"):
    given = EndRun(status, output=packed("done")) if status == "succeeded" else EndRun(status, "step 'x' failed", FAULT)
    outcome = succeeded(usage=SPENT) if status == "succeeded" else failed()
    move = moved(at, cursor=1, status=status, output=packed("done"), context=packed({"n": 8}), merges=True)
    assert (
        world.commit(concluded(at, move, fence=world.claim(at), close=status, end=given, outcome=outcome)) == "merged"
    )


def test_it_has_a_ticket_of_its_own(world, new, task):
    """No deadline and no budget is shared; where it is found, whose it is, and where it runs is."""
    run = task.ticket.run
    assert task.ticket == replace(new.first.ticket, run=run, root=ROOT, deadline=None, limits={**LIMITS, "run": run})
    record = world.run(run)
    assert (record.name, record.status, record.parent_run, record.is_background) == (
        "mail",
        "queued",
        new.first.ticket.run,
        True,
    )
    assert (record.retry_of, record.retries, world.run(new.first.ticket.run).is_background) == (None, 0, False)


def test_it_is_launched_with_the_commit_or_not_at_all(world, new):
    decision = launching(new.first, fence=world.claim(new) + 1)
    assert world.commit(decision) == "stale"
    assert world.stores.backlog.envelopes([f"{decision.child_run.run}:{ROOT}:x:1"]) == []


def test_it_is_launched_once(world, new):
    """The answer was lost, and the commit is said again."""
    decision = launching(new.first, fence=world.claim(new))
    world.commit(decision)
    assert world.commit(decision) == "repeated"
    assert len(world.attempts(decision.child_run.run)) == 1


def test_what_no_one_published_is_due(world, task):
    """A worker died between the launch and the message."""
    assert world.due() == []
    world.pass_time(GRACE_S + 0.1)
    assert [each.envelope.key for each in world.due()] == [task.key]


def test_it_is_no_ones_orphan(world, new, task):
    """The run that launched it has ended, and was asked to stop."""
    assert world.run(new.first.ticket.run).status == "succeeded"
    assert world.stores.scopes.orphaned_children(10) == []
    world.pass_time(601)
    assert world.stores.backlog.runs_to_stop(10) == []
    world.register_worker("w1")
    assert world.claim(task) == 1


def test_no_one_is_rung_for_when_it_ends(world, new, task):
    end(world, task)
    assert world.stores.scopes.child_run(task.ticket.run) is None
    assert not world.stores.scopes.signal_join(new.first.ticket.run, BOX, "flujo.control", "worker")
    world.pass_time(60)
    assert world.stores.scopes.missed_joins(10, 2.0) == []


def test_what_it_spends_is_its_own(world, new, task):
    end(world, task)
    assert (world.run(task.ticket.run).tokens, world.run(new.first.ticket.run).tokens) == (15, 0)
    assert {each.address: each.tokens for each in world.scopes(new.first.ticket.run)} == {"": 0, BOX: 0}


@pytest.fixture
def real(postgres):
    postgres.empty()
    return World(postgres)


@pytest.fixture
def given(real):
    new = real.record(enqueued(pipeline_of("a", BOX), tenant="acme"))
    decision = launching(new.first, fence=real.claim(new))
    real.commit(decision)
    return first_of(real, new, decision)


def ask(real, request):
    return real.setting.ask(request)


def again(at, **rest):
    new = f"{at.ticket.run}2"
    given = {"context": packed({"n": 9}), **rest}
    return requests.start_again(BackgroundRestart(at.ticket.run, new, at.key, f"{new}:{ROOT}:x:1", **given))


@pytest.mark.services
def test_what_it_was_launched_with_is_kept(real, given):
    """Whatever was merged into its context since."""
    end(real, given)
    launch = ask(real, requests.launch(given.ticket.run))
    assert (launch.context, launch.first, launch.address) == (packed({"n": 7}), given.key, ROOT)
    with pytest.raises(RunNotFound):
        ask(real, requests.launch(given.ticket.run.rpartition(".")[0]))


@pytest.mark.services
def test_it_is_started_again_as_it_was(real, given):
    end(real, given, "failed")
    new = ask(real, again(given, wait_s=2.0))
    assert real.due() == []
    real.pass_time(2.1)
    [due] = real.due()
    assert due.envelope.ticket == replace(given.ticket, run=new, limits={**given.ticket.limits, "run": new})
    assert replace(due.envelope, ticket=given.ticket) == replace(given, context=packed({"n": 9}))
    record = real.run(new)
    assert (record.retry_of, record.retries, record.is_background, record.input) == (
        given.ticket.run,
        1,
        True,
        packed("in"),
    )


@pytest.mark.services
@pytest.mark.parametrize("status", ["queued", "succeeded"])
def test_only_what_did_not_succeed_is_started_again(real, given, status):
    if status == "succeeded":
        end(real, given)
    assert ask(real, again(given)) is None


@pytest.mark.services
def test_of_two_who_start_it_again_at_once_one_does(real, given, race, database_url):
    end(real, given, "failed")
    found = race(*[lambda: ask_apart(database_url, again(given))] * 4)
    assert sorted(found, key=str) == [None, None, None, f"{given.ticket.run}2"]
    assert len(real.attempts(f"{given.ticket.run}2")) == 1


def ask_apart(url, request):
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as connection:
        return request.read(connection.execute(requests.statement(request.name), request.parameters).fetchall())


def failing(real, hours=24):
    return ask(real, requests.fail_stale(hours * 3600.0, STALE))


@pytest.mark.services
def test_one_without_a_sign_of_life_fails_by_what_is_said_of_it(real, given):
    older(real, DAY_S + 1)
    assert failing(real, hours=25) == []
    assert failing(real) == [given.ticket.run]
    assert failing(real) == []
    assert real.refusal(given) in ("stopped", "unleased")
    assert real.stores.backlog.runs_to_stop(10) == [(given.ticket.run, "failed")]
    assert real.stores.backlog.stop(given.ticket.run, "failed", "usage limit exceeded")
    record = real.run(given.ticket.run)
    assert (record.status, record.error, record.reason) == ("failed", STALE, "no sign of life")


@pytest.mark.services
@pytest.mark.parametrize(
    "sign",
    [
        "status = 'running', worker = 'w1'",
        "status = 'paused'",
        "started_at = now()",
        "available_at = now() + interval '9 s'",
    ],
)
def test_what_lives_is_not_stale(real, given, sign):
    """Someone works at it, it waits for an answer from a person or a time, or something was done of late."""
    older(real, DAY_S + 1)
    real.register_worker("w1")
    real.setting.rows(f"UPDATE flujo_attempts SET {sign} WHERE key = %(key)s RETURNING 1", key=given.key)
    assert failing(real) == []


@pytest.mark.services
def test_one_that_waits_for_a_lane_does_not_live_by_that(real, given):
    older(real, DAY_S + 1)
    real.setting.rows(
        "UPDATE flujo_attempts SET available_at = 'infinity' WHERE key = %(key)s RETURNING 1", key=given.key
    )
    assert failing(real) == [given.ticket.run]


@pytest.mark.services
def test_other_runs_are_never_stale(real):
    real.record(enqueued())
    older(real, DAY_S + 1)
    assert failing(real) == []


def older(real, seconds):
    """Make runs and attempts older than the world's own clock does."""
    for table in ("runs", "attempts"):
        created = f"UPDATE flujo_{table} SET created_at = created_at - make_interval(secs => %(s)s) RETURNING 1"
        real.setting.rows(created, s=seconds)
    real.pass_time(seconds)
