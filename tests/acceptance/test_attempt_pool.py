"""The worker pool of our own, as those see it who run Celery: remote control, events, signals, slots."""

import pytest

from flujo_client.contract.envelope import TASK_ATTEMPT
from flujo_worker.celery_app.app import FlujoWorker
from flujo_worker.celery_app.consumer.pool import POOL
from tests.support.fleet import assert_merged_once, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.usefixtures("own_workers")]


@pytest.fixture(scope="module")
def app(site):
    """An app next to the workers', as `celery -A ... inspect` has one."""
    app = FlujoWorker(settings=site.settings).app
    yield app
    app.close()


@pytest.fixture
def gated(site):
    """A worker with one attempt at work and one that waits for a slot."""
    site.workers(arguments=("--pool", "attempts", "--concurrency", "1"))
    first, second = site.enqueue("gated"), site.enqueue("gated")
    begun = wait_until(
        lambda: next((each for run in (first, second) for each in site.executions(run.id, "gate")), None), what=site.log
    )
    yield begun, first, second
    for run in (first, second):
        site.open_gate(run.id)
    for run in (first, second):
        assert_merged_once(site, run, ["before", "gate", "after"])


def answered(ask):
    """The one worker's answer to an inspection."""
    [answer] = wait_until(ask, what="no worker answers").values()
    return answer


def test_inspect_lists_attempts(app, site, gated):
    """Celery's `inspect active`, `query_task` and `stats` know what the engine has, and show nothing of a context."""
    begun, *_ = gated
    [held] = wait_until(lambda: answered(app.control.inspect().active), what=site.log)
    assert (held["name"], held["type"]) == ("acceptance_pipelines:gated/gate", TASK_ATTEMPT)
    assert held["id"].startswith(f"{begun.run}:")
    assert held["args"] == f"({held['id']})"
    assert answered(lambda: app.control.inspect().query_task(held["id"]))[held["id"]][0] == "active"
    stats = answered(app.control.inspect().stats)
    assert stats["pool"]["implementation"] == POOL
    assert stats["pool"]["attempts"] == 1
    assert stats["total"]["acceptance_pipelines:gated/gate"] >= 1


def test_a_worker_runs_no_more_attempts_than_its_concurrency(site, gated):
    """M-010: the second run's gate is not reached while the first holds the only slot."""
    begun, first, second = gated
    other = second if begun.run == first.id else first
    assert not site.executions(other.id, "gate")


def test_a_lone_run_stays_with_one_process(site):
    """Every step is a message that any worker may take; but a lone run's process takes the next one as it publishes it."""
    site.workers(2, arguments=("--pool", "attempts"))
    for _ in range(3):
        run = site.enqueue("three")
        assert_merged_once(site, run, ["first", "second", "third"])
        assert len({each.pid for each in site.executions(run.id)}) == 1
