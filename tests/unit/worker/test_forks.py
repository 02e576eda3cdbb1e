"""Processes that a step forks, under the handlers of a worker."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

ENDED_AT_ONCE = """
import os, signal, time
from flujo_worker.concurrency.forks import keep_signals_from_forks

keep_signals_from_forks()
signal.signal(signal.SIGTERM, lambda *_: None)
for _ in range(20):
    child = os.fork()
    if not child:
        time.sleep(20)
        os._exit(1)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
"""


def test_a_fork_that_is_ended_at_once_ends():
    """The worker's handler would take the signal before the fork has its own reaction, and nothing would follow."""
    subprocess.run([sys.executable, "-c", ENDED_AT_ONCE], check=True, timeout=60)
