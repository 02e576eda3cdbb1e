"""What Sentry hears of failed runs, from the real `sentry_sdk` over HTTP: the last failure of each step, once, as its user wrote it."""

import os
from pathlib import Path

import pytest

from tests.support.commands import running
from tests.support.fleet import wait_until
from tests.support.sentry_server import SentryServer

pytestmark = [pytest.mark.integrations, pytest.mark.services, pytest.mark.acceptance]

HERE = Path(__file__).parent
MODULES = os.pathsep.join(map(str, (HERE, HERE / "without_eventlet")))


@pytest.fixture
def sentry():
    with SentryServer() as server:
        yield server


@pytest.mark.parametrize(
    "command",
    [
        ("flujo_worker", "worker"),
        ("flujo_worker", "worker", "--pool", "threads"),
        ("flujo_worker", "worker", "--pool", "prefork", "-c", "2"),
        ("celery", "-A", "sentry_app", "worker", "-P", "prefork", "-c", "2"),
        ("celery", "-A", "sentry_app", "worker", "-P", "threads", "-c", "2"),
    ],
    ids=" ".join,
)
def test_the_last_failure_of_a_step_is_one_event(site, sentry, command):
    """With the user's exception, their frames and their values; the attempt before it is none, and neither is the run's own failure."""
    with running(site, MODULES, *command, SENTRY_DSN=sentry.dsn):
        runs = [site.client.enqueue(f"sentry_shop:{name}", "shelf 7") for name in ("failing", "branches")]
        for run in runs:
            assert run.result(timeout=60).run_status == "failed", site.log()
        wait_until(lambda: len(sentry.events) >= len(runs), what=site.log)
    expected = {
        (run.id, f"sentry_shop:{name}", "order") for run, name in zip(runs, ("failing", "branches"), strict=True)
    }
    tags = [event["tags"] for event in sentry.events]
    assert len(tags) == len(expected)
    assert {(each["flujo_run"], each["flujo_pipeline"], each["flujo_step"]) for each in tags} == expected
    for event in sentry.events:
        [error] = event["exception"]["values"]
        assert (error["type"], error["value"], event["level"]) == ("OutOfStock", "nothing on shelf 7", "error")
        own = [frame for frame in error["stacktrace"]["frames"] if frame["module"] == "sentry_shop"]
        assert [frame["function"] for frame in own] == ["order", "look_up"]
        assert own[-1]["vars"] == {"shelf": "'shelf 7'"}
        others = [frame for frame in error["stacktrace"]["frames"] if frame not in own]
        assert [frame for frame in others if frame["module"].startswith("flujo_") and "vars" in frame] == []
        assert event["contexts"]["flujo"]["attempt"] == 2


def test_code_between_steps_that_fails_a_run_is_one_event(site, sentry):
    """A condition belongs to no attempt of its own."""
    with running(site, MODULES, "flujo_worker", "worker", SENTRY_DSN=sentry.dsn):
        run = site.client.enqueue("sentry_shop:endless", "night")
        assert run.result(timeout=60).run_status == "failed", site.log()
        wait_until(lambda: sentry.events, what=site.log)
    [event] = sentry.events
    assert event["exception"]["values"][-1]["value"] == "no end of night"
    assert event["tags"]["flujo_run"] == run.id
