"""Notifications of commits that end or pause a run, on the real store: one each, and none of other commits (ADR 28)."""

import psycopg
import pytest
from trees import concluded, moved, opening, work
from worlds import World, run_of

from flujo_worker.domain.values import EndRun, NextAttempt
from flujo_worker.ports import Committed
from tests.support.builders import decided, enqueued, envelopes, failed, packed, pipeline_of, succeeded

pytestmark = pytest.mark.services


@pytest.fixture(params=["postgres", "postgres_in_groups"])
def real(request):
    setting = request.getfixturevalue(request.param)
    setting.empty()
    return World(setting)


@pytest.fixture
def heard(database_url):
    """Who is notified of by now: everything of commits that are over."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        found = []
        connection.add_notify_handler(lambda each: found.append((each.channel, each.payload)))
        connection.execute("LISTEN flujo_runs")

        def hear():
            connection.execute("SELECT 1")
            new, found[:] = list(found), []
            return new

        yield hear


def question_to(new):
    rest = {"kind": "resume", "question": {"message": "go?", "schema": None}}
    return NextAttempt("", "ask", 1, "flujo.attempts", new.first.input, None, 0, **rest)


@pytest.mark.parametrize("outcome", [succeeded(), failed("plugin")], ids=["success", "failure"])
def test_a_run_that_ends_notifies_and_its_steps_before_do_not(real, heard, outcome):
    new = real.record(enqueued(pipeline_of("a", "b")))
    first = decided(new, succeeded(), fence=real.claim(new))
    real.commit(first)
    assert heard() == []
    [second] = envelopes(first)
    real.conclude(new, outcome, fence=real.claim(second), at=second)
    assert heard() == [("flujo_runs", run_of(new))]


@pytest.mark.parametrize("real", ["postgres"], indirect=True)
@pytest.mark.parametrize("outcome", [succeeded(), failed("plugin")], ids=["success", "failure"])
def test_a_group_of_merges_notifies_of_each_run_that_ends_and_of_no_other(real, groups, heard, outcome):
    ending = [real.record(enqueued(pipeline_of("a"))) for _ in range(3)]
    lasting = real.record(enqueued(pipeline_of("a", "b")))
    decisions = [decided(new, outcome, fence=real.claim(new)) for new in ending]
    decisions.append(decided(lasting, succeeded(), fence=real.claim(lasting)))
    answers = groups.together(*(groups.ledger.commit(each) for each in decisions))
    assert answers == [Committed("merged")] * 4
    assert sorted(heard()) == sorted(("flujo_runs", run_of(new)) for new in ending)


@pytest.mark.parametrize("real", ["postgres"], indirect=True)
def test_a_group_of_merges_notifies_of_a_question(real, groups, heard):
    asks, goes_on = (real.record(enqueued(pipeline_of("a", kind))) for kind in ("ask", "b"))
    decisions = [
        concluded(asks.first, moved(asks.first), fence=real.claim(asks), next=(question_to(asks),)),
        decided(goes_on, succeeded(), fence=real.claim(goes_on)),
    ]
    answers = groups.together(*(groups.ledger.commit(each) for each in decisions))
    assert answers == [Committed("merged")] * 2
    assert heard() == [("flujo_runs", run_of(asks))]


def test_a_merge_beyond_one_scope_notifies_of_the_end_alone(real, heard):
    new = real.record(enqueued())
    box = opening("box", "")
    opened = concluded(new.first, moved(new.first), fence=real.claim(new), opens=(box,), next=(work(box),))
    real.commit(opened)
    assert heard() == []
    [inside] = envelopes(opened)
    root, scope = real.scope(run_of(new)), real.scope(run_of(new), "box")
    closes = (moved(scope, status="succeeded"), moved(root, status="succeeded"))
    real.commit(concluded(inside, *closes, fence=real.claim(inside), end=EndRun("succeeded", output=packed(1))))
    assert heard() == [("flujo_runs", run_of(new))]


def test_a_retry_and_a_late_outcome_notify_of_nothing(real, heard):
    new = real.record(enqueued(pipeline_of("a", max_retries=3)))
    fence = real.claim(new)
    real.conclude(new, failed(), fence=fence)
    real.conclude(new, succeeded(), fence=fence)
    assert heard() == []


@pytest.mark.parametrize("end", ["cancelled", "expired"])
def test_a_run_that_is_stopped_notifies_once(real, heard, end):
    new = real.record(enqueued())
    real.stores.backlog.stop(run_of(new), end, "enough")
    real.stores.backlog.stop(run_of(new), end, "again")
    assert heard() == [("flujo_runs", run_of(new))]


def test_a_question_notifies(real, heard):
    new = real.record(enqueued(pipeline_of("a", "ask")))
    real.commit(concluded(new.first, moved(new.first), fence=real.claim(new), next=(question_to(new),)))
    assert heard() == [("flujo_runs", run_of(new))]
