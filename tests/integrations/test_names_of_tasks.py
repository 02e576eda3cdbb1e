"""The names that attempts have in Sentry and OpenTelemetry, as installed: their task's own, or that of pipeline and step."""

import json
import os
from pathlib import Path

import pytest

from flujo_worker.celery_app.consumer.pool import POOL
from tests.support.commands import running
from tests.support.fleet import wait_until
from tests.support.sentry_server import SentryServer

pytestmark = [pytest.mark.integrations, pytest.mark.services, pytest.mark.acceptance]

HERE = Path(__file__).parent
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
OUTER = {f"monitored_shop:orders/{step}" for step in ("note", "price", "charge")}


def failed(site, **options):
    run = site.client.enqueue("monitored_shop:orders", "a book", **options)
    assert run.result(timeout=60).run_status == "failed", site.log()
    return run


@pytest.mark.parametrize("pool", ["custom", "threads", "prefork"])
def test_sentry_names_transactions_and_reports_a_tasks_failure_once(site, pool):
    """With the task's own name, frames and values, as before it was a step; the attempt that was retried is none."""
    command = ("celery", "-A", "monitored_app", "worker", "-c", "2", "-P", pool)
    with SentryServer() as sentry:
        with running(
            site,
            f"{HERE}{os.pathsep}{HERE / 'without_eventlet'}",
            *command,
            SENTRY_DSN=sentry.dsn,
            CELERY_CUSTOM_WORKER_POOL=POOL,
        ):
            run = failed(site)
            wait_until(lambda: sentry.events, what=site.log)
        names = {each["transaction"] for each in sentry.transactions}
        [event] = sentry.events
    assert names == OUTER | {"shop.price", "shop.charge"}
    [error] = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("ConnectionError", "the bank is closed")
    assert error["stacktrace"]["frames"][-1]["vars"] == {"order": "6"}
    assert event["transaction"] == "shop.charge"
    assert event["tags"]["flujo_run"] == run.id
    assert event["tags"]["flujo_step"] == "charge"


@pytest.mark.parametrize("pool", ["custom", "threads", "prefork"])
def test_opentelemetry_names_spans(site, tmp_path, pool):
    """The task's own span continues the trace that the run was enqueued with."""
    command, spans = ("celery", "-A", "monitored_app", "worker", "-c", "2", "-P", pool), tmp_path / "spans"
    with running(site, HERE, *command, SPANS=str(spans), CELERY_CUSTOM_WORKER_POOL=POOL):
        failed(site, trace_parent=f"00-{TRACE}-00f067aa0ba902b7-01")
    found = [json.loads(line) for line in spans.read_text().splitlines()]
    assert {name for name, _, _ in found} == {f"run/{name}" for name in (*OUTER, "shop.price", "shop.charge")}
    assert [status for name, status, _ in found if name == "run/shop.charge"][-1] == "ERROR"
    assert {trace for name, _, trace in found if name.startswith("run/shop.")} == {TRACE}
