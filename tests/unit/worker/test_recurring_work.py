"""Work that a thread does again and again: what wakes it, what it survives, and how it ends."""

from __future__ import annotations

import threading

import pytest

from flujo_worker.concurrency.recurring import RecurringWork
from flujo_worker.errors import StoreError
from tests.support.fleet import PATIENCE_S, wait_until


@pytest.fixture
def recurring():
    started = []

    def start(work, **options):
        started.append(RecurringWork(work, "the work", "test-work", **options))
        return started[-1].start()

    yield start
    for each in started:
        each.stop()


@pytest.mark.parametrize(
    ("error", "line"), [(StoreError("away"), "the work postponed: away"), (ValueError("a bug"), "the work failed")]
)
def test_an_error_is_logged_and_does_not_end_the_thread(recurring, caplog, error, line):
    errors, done = [error], threading.Event()

    def work():
        if errors:
            raise errors.pop()
        done.set()

    recurring(work, every_s=0.001)
    assert done.wait(PATIENCE_S)
    assert line in caplog.text


def test_without_a_pause_it_waits_until_it_is_woken(recurring):
    done = []
    work = recurring(lambda: done.append(1))
    for times in (1, 2):
        work.wake.set()
        wait_until(lambda times=times: len(done) == times, what="the work")
    work.stop()
    assert len(done) == 2


@pytest.mark.parametrize(("ends_with_work", "times"), [(True, 2), (False, 1)])
def test_the_last_work_is_done_although_it_was_at_work_when_it_was_stopped(recurring, ends_with_work, times):
    """What came while it was at work would be lost with the process."""
    done, at_work, goes_on = [], threading.Event(), threading.Event()

    def act():
        done.append(1)
        at_work.set()
        assert goes_on.wait(PATIENCE_S)

    work = recurring(act, ends_with_work=ends_with_work)
    work.wake.set()
    assert at_work.wait(PATIENCE_S)
    work.retire()
    goes_on.set()
    work.stop()
    assert len(done) == times


def test_it_can_be_stopped_before_it_was_started():
    """A process that fails while it starts stops all its parts."""
    RecurringWork(lambda: None, "the work", "test-work").stop()
