"""Celery tasks as steps: each row of the table "what of your task is kept", in each pool."""

import json
from itertools import pairwise
from typing import NamedTuple

import pytest

from flujo_worker.celery_app.consumer.pool import POOL
from tests.support.commands import running
from tests.support.fleet import STEPS, wait_until, whole_lines

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
    before = site.live_pids()
    with running(
        site,
        STEPS,
        *WORKERS[request.param],
        ACCEPTANCE_FOLDER=str(site.folder),
        CELERY_CUSTOM_WORKER_POOL=POOL,
        **heard,
    ):
        wait_until(lambda: site.live_pids() - before, what=site.log)
        yield site


def ended(site, name, value):
    run = site.client.enqueue(f"task_pipelines:{name}", value)
    return run, run.result(timeout=60)


def noted(site, run):
    """What has been noted in the attempts of a run: by tasks, and by receivers of signals."""
    lines = [json.loads(line) for line in whole_lines(site.folder / "shop")]
    return [line for line in lines if line[0].startswith(f"{run.id}:")]


def story(site, run):
    """What its tasks have noted."""
    return [line for line in noted(site, run) if line[1] != "signal"]


def signals(site, run):
    """The signals that were sent, as attempt, signal and sender."""
    return [[key, name, sender] for key, what, name, sender in filter(_is_signal, noted(site, run))]


def _is_signal(line):
    return line[1] == "signal"


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


@pytest.mark.parametrize(
    ("pipeline", "value", "error", "attempts"),
    [
        ("plain", "words", "ValueError: words", 1),
        ("named_fails", "words", "ValueError: words", 1),
        ("stubborn", "words", "ValueError: words", 3),
        ("never", None, "MaxRetriesExceededError", 3),
        ("fetch", 9, "OSError: the net is down", 4),
        ("flaky", "bytes", "UnicodeError: bytes", 1),
        ("based", "fail", "ValueError: fail", 1),
        ("hard", None, "TimeoutError", 1),
        ("spread", 5, "the arguments of task 'task_shop.total' are to be spread from its input, which is a int", 1),
        ("forbidden", "replace", "task 'task_shop.forbidden' calls `replace`", 1),
        ("forbidden", "add_to_chord", "task 'task_shop.forbidden' calls `add_to_chord`", 1),
        ("forbidden", "retry", "task 'task_shop.forbidden' calls `retry` with other arguments", 1),
        ("forbidden", "Ignore", "task 'task_shop.forbidden' raised Ignore: not today", 1),
        ("rejecting", None, "task 'task_shop.rejecting' raised Reject", 1),
    ],
)
def test_how_a_task_fails_its_step(shop, pipeline, value, error, attempts):
    """Without `autoretry_for` there is one attempt, unless the step says otherwise; and nothing retries what a step cannot do."""
    _, result = ended(shop, pipeline, value)
    assert result.run_status == "failed"
    assert error in f"{result.error.type_name}: {result.error.message}", shop.log()
    assert result.step_history[-1].attempts == attempts


def test_a_task_finds_its_request(shop):
    run, result = ended(shop, "look", [1])
    assert result.output == [f"{run.id}::look:1", 0, [[1]], "flujo.attempts", run.id], shop.log()


@pytest.mark.parametrize(
    ("pipeline", "value", "waits"),
    [("fetch", 2, [0.3, 0.3]), ("flaky", "words", [1.0])],
    ids=["default_retry_delay", "retry_backoff"],
)
def test_a_task_is_retried_after_the_time_that_it_asks_for(shop, pipeline, value, waits):
    """And not after the step's own backoff."""
    run, result = ended(shop, pipeline, value)
    assert result.run_status == "succeeded"
    delays = [event["data"]["delay_seconds"] for event in shop.events(run.id, "flujo.retry")]
    assert delays == pytest.approx(waits)
    began = [at for _, at in story(shop, run)]
    assert all(b - a >= wait - 0.05 for (a, b), wait in zip(pairwise(began), waits, strict=True))


def test_a_task_is_retried_at_the_time_that_it_names(shop):
    run, result = ended(shop, "later", None)
    [[_, asked_at]] = story(shop, run)
    assert result.output - asked_at >= 0.45, shop.log()


def test_the_hooks_of_a_base_class_are_called_in_celerys_order(shop):
    run, _ = ended(shop, "based", "retry")
    first, second = f"{run.id}::based:1", f"{run.id}::based:2"
    assert story(shop, run) == [
        [first, "before_start", ["retry"]],
        [first, "called", 0],
        [first, "on_retry", "OSError('retry')"],
        [second, "before_start", ["retry"]],
        [second, "called", 1],
        [second, "on_success", "retry"],
        [second, "after_return", "SUCCESS"],
    ]
    run, _ = ended(shop, "based", "fail")
    only = f"{run.id}::based:1"
    assert story(shop, run)[2:] == [
        [only, "on_failure", "ValueError('fail')", "ValueError"],
        [only, "after_return", "FAILURE"],
    ]


def test_update_state_is_an_event_of_the_run(shop):
    run, _ = ended(shop, "state", "rows")
    [event] = shop.events(run.id, "task.state")
    assert event["data"] == {"state": "PROGRESS", "meta": {"done": 3}}


def ended_attempts(shop, run):
    """The signals of each attempt of a run, in order; none until all its messages have ended: the next attempt may begin before."""
    by_attempt = {}
    for key, *sent in signals(shop, run):
        by_attempt.setdefault(key, []).append(tuple(sent))
    sent = [each for of_attempt in by_attempt.values() for each in of_attempt]
    return by_attempt if sent.count(BEGUN) == sent.count(ENDED) else {}


BEGUN, ENDED = ("prerun", "flujo.attempt"), ("postrun", "flujo.attempt")


@pytest.mark.large
@pytest.mark.parametrize("shop", list(WORKERS)[1:], indirect=True)
def test_each_signal_comes_once_and_from_the_task(shop):
    """Those of a message's work come from `flujo.attempt` around them, also where a message comes twice; of success, failure and retry there is one."""
    ends = {"two": ["success", "success"], "fetch": ["retry", "success"], "plain": ["failure"]}
    for pipeline, value in (("two", "a.png"), ("fetch", 1), ("plain", "words")):
        run, _ = ended(shop, pipeline, value)
        by_attempt = wait_until(lambda run=run: ended_attempts(shop, run), what=shop.log)
        found = []
        for sent in by_attempt.values():
            assert (sent[0], sent[-1]) == (BEGUN, ENDED), sent
            of_task = [each for each in sent if each not in (BEGUN, ENDED)]
            assert len(of_task) == 3, f"{sent}\n{shop.log()}"
            before, end, after = of_task
            assert (before[0], after[0]) == ("prerun", "postrun")
            assert before[1] == end[1] == after[1] != "flujo.attempt"
            found.append(end[0])
        assert found == ends[pipeline]


@pytest.mark.large
@pytest.mark.parametrize("shop", ["threads"], indirect=True)
def test_a_receiver_for_one_task_hears_of_that_task_only(shop):
    resized, _ = ended(shop, "two", "a.png")
    other, _ = ended(shop, "late", "a.png")
    assert [line[1] for line in story(shop, resized)] == ["of this task"] * 2
    assert story(shop, other) == []


def test_celery_6631_what_follows_a_task_that_was_retried_is_not_lost(shop):
    _, result = ended(shop, "rest", 1)
    assert (result.output, [step.attempts for step in result.step_history]) == ("1 at 100", [2, 1]), shop.log()


def test_celery_5229_a_task_that_fails_in_a_group_ends_the_run_with_its_error(shop):
    _, result = ended(shop, "group", "words")
    assert (result.run_status, result.error.type_name) == ("failed", "ValueError"), shop.log()
