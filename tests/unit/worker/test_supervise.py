"""The parent of a `flujo worker`, with a small script as its worker: signals, exit codes, replacement and death."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]

PAUSE_S = 1.5
WORKER = """
import os, signal, sys, time
from flujo_worker.cli import supervise
from flujo_worker.cli.supervise import follow
supervise.AT_LEAST_S = float(sys.argv[2])
parent = supervise.supervise()
follow(parent)
starts = open(sys.argv[1], "a")
heard = []
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, lambda number, _: heard.append(number))
print(os.getpid(), parent, file=starts, flush=True)
while True:
    time.sleep(0.01)
    for number in heard:
        if number == signal.SIGHUP:
            sys.exit(75)
        if number == signal.SIGUSR1:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == signal.SIGINT:
            time.sleep(0.5)  # a second one would come meanwhile
            sys.exit(7 if heard.count(number) == 1 else 8)
        sys.exit(0 if number == signal.SIGTERM else 75)
"""


class Supervised:
    def __init__(self, folder, at_least_s=0.1, **options):
        self.starts = folder / "starts"
        self.starts.touch()
        self.process = subprocess.Popen([sys.executable, "-c", WORKER, str(self.starts), str(at_least_s)], **options)

    def pids(self):
        return [int(line.split()[0]) for line in self.starts.read_text().splitlines() if len(line.split()) == 2]

    def wait_for_start(self, count):
        wait_until(lambda: len(self.pids()) == count)
        return self.pids()[-1]


def wait_until(is_so):
    until = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


def is_alive(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@pytest.fixture
def supervised(request, tmp_path):
    one = Supervised(tmp_path, *getattr(request, "param", ()))
    yield one
    one.process.kill()
    one.process.wait()
    wait_until(lambda: not any(is_alive(pid) for pid in one.pids()))


def test_a_worker_that_retires_is_replaced_and_the_parent_stays(supervised):
    first = supervised.wait_for_start(1)
    supervised.process.send_signal(signal.SIGHUP)
    second = supervised.wait_for_start(2)
    assert first != second
    assert not is_alive(first)
    assert supervised.process.poll() is None
    supervised.process.terminate()
    assert supervised.process.wait(60) == 0


@pytest.mark.parametrize("supervised", [(PAUSE_S,)], indirect=True)
def test_a_parent_replaces_the_worker_even_if_it_is_suspended_while_it_waits(supervised):
    """`docker pause` suspends it, and so does closing a laptop."""
    first, began = supervised.wait_for_start(1), time.monotonic()
    supervised.process.send_signal(signal.SIGHUP)
    wait_until(lambda: not is_alive(first))
    wait_until(lambda: Path(f"/proc/{supervised.process.pid}/stat").read_text().split()[2] == "S")  # waits again
    supervised.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: time.monotonic() > began + PAUSE_S)
    supervised.process.send_signal(signal.SIGCONT)
    assert supervised.wait_for_start(2) != first


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 7), (signal.SIGQUIT, 0), (signal.SIGUSR1, -signal.SIGKILL)]
)
def test_a_signal_reaches_the_worker_once_and_its_end_is_the_parents(supervised, sent, code):
    """One that retires after it was told to stop is not replaced."""
    pid = supervised.wait_for_start(1)
    supervised.process.send_signal(sent)
    assert supervised.process.wait(60) == code
    assert supervised.pids() == [pid]


def test_ctrl_c_at_a_terminal_reaches_the_worker_once(tmp_path):
    """The terminal signals both; a second SIGINT would be Celery's cold shutdown."""
    terminal, own = pty.openpty()
    one = Supervised(
        tmp_path, stdin=own, start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    )
    try:
        one.wait_for_start(1)
        os.write(terminal, b"\x03")
        assert one.process.wait(60) == 7
    finally:
        one.process.kill()
        one.process.wait()
        os.close(terminal)
        os.close(own)


def test_a_worker_whose_parent_is_killed_ends(supervised):
    pid = supervised.wait_for_start(1)
    supervised.process.kill()
    supervised.process.wait(30)
    wait_until(lambda: not is_alive(pid))
