"""Which processes of this machine are gone, and which may not be called so."""

import os
import subprocess
import sys

import pytest

from flujo_worker.liveness.neighbours import Neighbours, machine


class Roll:
    """A store with these workers on its host."""

    def __init__(self, *workers):
        self.workers, self.buried = workers, []

    def neighbours(self, host):
        assert host == "host"
        return list(self.workers)

    def bury(self, worker, max_lost):
        assert max_lost == 3
        self.buried.append(worker)
        return set()


@pytest.fixture
def ended():
    """A process that has ended and whose parent has not asked how: its pid is still its own."""
    process = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.DEVNULL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield process
    process.wait()


def buried(*workers, place="here"):
    roll = Roll(*workers)
    Neighbours(roll, "host", place, max_lost=3).bury()
    return roll.buried


def test_a_process_that_ended_is_gone_before_and_after_its_parent_has_asked(ended):
    dead = (f"host-{ended.pid}-here-a1", ended.pid)
    assert buried(dead) == [dead[0]]
    ended.wait()
    assert buried(dead) == [dead[0]]


def test_a_process_that_lives_is_left_alone():
    """So is one of someone else's, which may not be signalled, and a pid that was given away again."""
    assert buried((f"host-{os.getpid()}-here-a1", os.getpid()), ("host-1-here-a1", 1)) == []


@pytest.mark.parametrize("place", ["there", ""])
def test_a_pid_of_another_place_says_nothing(ended, place):
    """Two containers can have one name for their host, and their own pids."""
    ended.wait()
    assert buried((f"host-{ended.pid}-here-a1", ended.pid), place=place) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_the_place_is_the_same_for_all_processes_here():
    other = subprocess.run(
        [sys.executable, "-c", "from flujo_worker.liveness.neighbours import machine; print(machine())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert machine() == other.stdout.strip() != ""
