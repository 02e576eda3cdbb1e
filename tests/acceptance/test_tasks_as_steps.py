"""Celery tasks as steps: each row of the table "what of your task is kept", in each pool."""

import json
from typing import NamedTuple

import pytest

from flujo_worker.celery_app.consumer.pool import POOL
from tests.support.commands import running
from tests.support.fleet import STEPS, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.services]

WORKERS = {
    "flujo worker": ("flujo_worker", "worker"),
    "custom": ("celery", "-A", "task_shop", "worker", "-c", "4", "-P", "custom"),
    "threads": ("celery", "-A", "task_shop", "worker", "-c", "4", "-P", "threads"),
    "prefork": ("celery", "-A", "task_shop", "worker", "-c", "2", "-P", "prefork"),
}
"""How a worker is started. The first has no receivers of signals, so messages bypass Celery's tracer."""


@pytest.fixture(
    scope="module",
    params=["flujo worker", *(pytest.param(each, marks=pytest.mark.large) for each in list(WORKERS)[1:])],
)
def shop(request, site):
    """A worker that has the shop's tasks."""
    heard = {} if request.param == "flujo worker" else {"SHOP_SIGNALS": "1"}
    with running(
        site,
        STEPS,
        *WORKERS[request.param],
        ACCEPTANCE_FOLDER=str(site.folder),
        CELERY_CUSTOM_WORKER_POOL=POOL,
        **heard,
    ):
        wait_until(site.live_pids, what=site.log)
        yield site


def ended(site, name, value):
    run = site.client.enqueue(f"task_pipelines:{name}", value)
    return run, run.result(timeout=60)


def story(site, run, *, without=()):
    """What the tasks of a run have noted, by attempt."""
    log = site.folder / "shop"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [line for line in lines if line[0].startswith(f"{run.id}:") and line[1] not in without]


class Kept(NamedTuple):
    """A row: the pipeline, its input, its output, and how often its last step was tried."""

    pipeline: str
    value: object
    output: object
    attempts: int = 1


@pytest.mark.parametrize(
    "row",
    [
        Kept("two", "a.png", "a.png at 100 at 3"),
        Kept("late", [1, {"b": None}], [1, {"b": None}]),
        Kept("fetch", 2, 2, attempts=3),
        Kept("flaky", "words", "words", attempts=2),
        Kept("soft", None, "stopped softly"),
        Kept("spread", {"price": 3, "count": 4, "discount": 1}, 11),
        Kept("spread_list", [3, 4], 7),
        Kept("ignoring", "anything", 3),
        Kept("limited", 5, 5),
        Kept("named", "b.png", "b.png at 100"),
        Kept("based", "retry", "retry", attempts=2),
    ],
    ids=lambda row: f"{row.pipeline}",
)
def test_what_a_task_does_is_kept(shop, row):
    _, result = ended(shop, row.pipeline, row.value)
    assert result.run_status == "succeeded", shop.log()
    assert (result.output, result.step_history[-1].attempts) == (row.output, row.attempts)
