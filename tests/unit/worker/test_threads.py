"""The threads that code runs in which is not `async`."""

import subprocess
import sys
import threading
from concurrent.futures import Future

import pytest

from flujo_worker.concurrency.threads import Threads

HANGING = """
import threading, time
from flujo_worker.concurrency.threads import Threads
started = threading.Event()
def hang():
    started.set()
    time.sleep(60)
Threads("agent").submit(hang)
started.wait()
"""


@pytest.fixture
def threads():
    threads = Threads("agent")
    yield threads
    threads.shutdown()


def test_no_call_waits_for_another(threads):
    wake = threading.Event()
    hanging = [threads.submit(wake.wait, 30) for _ in range(50)]
    assert threads.submit(sum, [1, 2]).result(timeout=60) == 3
    wake.set()
    assert all(each.result(timeout=60) for each in hanging)


def test_threads_are_used_again(threads):
    """Making one for each call would cost more than most calls."""
    assert len({threads.submit(threading.get_ident).result(timeout=60) for _ in range(200)}) < 100


def test_a_callback_submits_the_next_call_to_the_same_thread(threads):
    """Otherwise four callers, each of which submits its next call when the last one ends, use up to eight threads."""
    wake, second = threading.Event(), Future()
    first = threads.submit(lambda: wake.wait(60) and threading.get_ident())
    first.add_done_callback(lambda _: second.set_result(threads.submit(threading.get_ident)))
    wake.set()
    assert second.result(timeout=60).result(timeout=60) == first.result()


def test_shutdown_ends_idle_threads_at_once_and_others_after_their_call():
    threads, wake = Threads("agent"), threading.Event()
    calls = [threads.submit(lambda: wake.wait(60) and threading.current_thread()) for _ in range(3)]
    idle = threads.submit(threading.current_thread).result(timeout=60)
    threads.shutdown()
    wake.set()
    for thread in (idle, *(call.result(timeout=60) for call in calls)):
        thread.join(timeout=20)  # less than an idle thread waits for its next call
        assert not thread.is_alive()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_what_a_call_raises_comes_back_and_the_thread_continues(threads, error):
    def fail():
        raise error

    assert threads.submit(fail).exception(timeout=60) is error
    assert threads.submit(str, 1).result(timeout=60) == "1"


def test_a_call_that_hangs_does_not_keep_the_process_from_ending():
    """Else a worker that is told to stop would wait for it, past its lease, until it is killed."""
    subprocess.run([sys.executable, "-c", HANGING], check=True, timeout=30)


def test_idle_threads_end(threads, monkeypatch):
    """A burst leaves no thread for each of its calls in memory forever (U-39)."""
    monkeypatch.setattr("flujo_worker.concurrency.threads.IDLE_S", 0.01)
    wake = threading.Event()
    burst = [threads.submit(lambda: wake.wait(30) and threading.current_thread()) for _ in range(20)]
    wake.set()
    for each in burst:
        each.result(timeout=60).join(timeout=60)
        assert not each.result().is_alive()
    assert threads.submit(str, 1).result(timeout=60) == "1"
