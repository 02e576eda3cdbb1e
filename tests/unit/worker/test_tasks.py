"""What a delivery leaves behind in Celery: a part of its chord, nothing, or an error."""

import pytest
from celery import Celery
from celery.exceptions import Ignore

from flujo_client.contract.envelope import TASK_ATTEMPT, TASK_HEALTH_CHECK, TASK_JOIN, TASK_START, TASK_SWEEP, TASKS
from flujo_worker.attempts.isolation import DeliveryResult, FailureText
from flujo_worker.celery_app import tasks
from flujo_worker.errors import StepFailed, WireError


class Host:
    """Answers every delivery alike: whether it counts, with a failure, or by raising."""

    def __init__(self, answer=True, failure=None):
        self.answer, self.failure, self.seen = answer, failure, []

    def deliver(self, _task, wire, *, task_id):
        self.seen.append((wire, task_id))
        if isinstance(self.answer, Exception):
            raise self.answer
        return DeliveryResult("merged", self.answer, failure=self.failure)

    def sweep(self):
        self.seen.append("sweep")

    def health_check(self):
        self.seen.append("health check")


class Refusals(list):
    """Keeps what was refused."""

    def record(self, error, item, *, queue):
        self.append((error.reason, item, queue))


def app_of(host, refusals=None):
    app = Celery("toys", set_as_current=False)
    tasks.add(app, lambda: host, Refusals() if refusals is None else refusals, lambda: None)
    return app


def deliver(name, host, *, group=None, refusals=None):
    """Whether the request is still the chord's, when the task has returned."""
    task = app_of(host, refusals).tasks[name]
    task.push_request(id="key", group=group, chord=group and {"task": TASK_JOIN})
    try:
        assert task.run(*(([], "wire") if name == TASK_JOIN else ("wire",))) is None
        return task.request.chord is not None
    finally:
        task.pop_request()


each = pytest.mark.parametrize("name", [TASK_ATTEMPT, TASK_START, TASK_JOIN])


def test_there_is_a_task_for_each_kind_of_work():
    """M-007: an unknown name in a header hangs its chord."""
    ours = {name for name in app_of(Host()).tasks if name.startswith("flujo.")}
    assert ours == {*TASKS.values(), TASK_SWEEP, TASK_HEALTH_CHECK}


@each
@pytest.mark.parametrize("group", [None, "chord:run:f"])
def test_what_counts_returns_as_what_it_came(name, group):
    host = Host()
    assert deliver(name, host, group=group) is (group is not None)
    assert host.seen == [("wire", "key")]


@each
def test_a_member_that_does_not_count_leaves_the_chord(name):
    """M-007: a branch of many steps is one part, returned by its last."""
    assert not deliver(name, Host(answer=False), group="chord:run:f")


@each
def test_outside_chords_nothing_needs_to_count(name):
    assert not deliver(name, Host(answer=False))


@each
def test_a_members_error_is_logged_and_no_part(name, caplog):
    """C-23: raised, it would fail the chord permanently."""
    with pytest.raises(Ignore):
        deliver(name, Host(OSError("the store is away")), group="chord:run:f")
    assert "message key failed" in caplog.text
    assert "the store is away" in caplog.text


FAILED = FailureText("step 's' failed", "Traceback …")


@each
def test_a_failed_attempt_fails_its_task(name):
    """Those who listen to Celery see it, with the traceback."""
    with pytest.raises(StepFailed, match="step 's' failed") as caught:
        deliver(name, Host(failure=FAILED))
    assert caught.value.__notes__ == [FAILED.traceback]


@each
@pytest.mark.parametrize("counts", [True, False])
def test_a_failed_part_is_counted_before_its_task_fails(name, counts, monkeypatch):
    """M-007: Celery would fail the chord with it."""
    counted = []
    monkeypatch.setattr(tasks, "count_parts", lambda app, parts: counted.extend(part.group for part in parts))
    task = app_of(Host(counts, FAILED)).tasks[name]
    task.push_request(id="key", group="chord:run:f", group_index=0, chord={"task": TASK_JOIN})
    try:
        with pytest.raises(StepFailed):
            task.run(*(([], "wire") if name == TASK_JOIN else ("wire",)))
        assert task.request.chord is None
        assert counted == ["chord:run:f"] * counts
    finally:
        task.pop_request()


def test_a_failure_is_expected_by_celery():
    assert StepFailed in app_of(Host()).tasks[TASK_ATTEMPT].throws


@each
def test_outside_chords_an_error_is_celerys_to_tell(name):
    with pytest.raises(OSError, match="the store is away"):
        deliver(name, Host(OSError("the store is away")))


@each
@pytest.mark.parametrize("group", [None, "chord:run:f"])
def test_a_message_that_is_refused_is_recorded_and_no_part(name, group):
    """M-014: nothing of it reaches Celery, which would fail the chord, or tell its arguments."""
    refusals = Refusals()
    assert not deliver(name, Host(WireError("it is another's")), group=group, refusals=refusals)
    assert refusals == [("mismatched", b"key", "None")]


def test_each_app_of_a_process_has_its_own_host():
    """Tasks that Celery shares would carry out another app's messages on the first one's host."""
    hosts = Host(), Host()
    apps = [app_of(host) for host in hosts]
    for app in apps:
        app.tasks[TASK_SWEEP]()
    assert [host.seen for host in hosts] == [["sweep"], ["sweep"]]
