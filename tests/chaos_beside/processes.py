"""The processes of a project: its workers, and the client."""

import os
import select
import signal
import subprocess
import time
from contextlib import suppress

from tests.chaos_beside.steps import STOP_S

ANSWER_S = 30.0
GRACE_S = STOP_S + 2.0
"""A worker that is asked to stop is killed after so many seconds."""


class Process(subprocess.Popen):
    """A worker process that leads a group. It is killed and stopped with its children, as with its machine; only it is asked to end."""

    def send_signal(self, number):
        if self.poll() is None:
            (os.kill if number == signal.SIGTERM else os.killpg)(self.pid, number)

    def end_children(self):
        """Kill what a process left that has ended, as a container does."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class Workers:
    """The worker processes of a project, one in each slot; a process that has ended is replaced at once.

    Args:
        command: returns the command of the process in a slot.
        count: how many. log: a file that takes what they print.
    """

    def __init__(self, command, count, log):
        self._command, self._log = command, log
        self._slots = [None] * count
        self._leaving, self._to_stop = None, []

    @property
    def processes(self):
        return [process for process in self._slots if process is not None]

    def replace_dead(self):
        """Start what is missing, and continue a deploy: one process after another is asked to stop, and killed if it does not."""
        self._continue_deploy()
        for slot, process in enumerate(self._slots):
            if process is None or process.poll() is not None:
                if process is not None:
                    process.end_children()
                with self._log.open("ab") as out:
                    command = self._command("worker", str(slot))
                    streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
                    self._slots[slot] = Process(command, start_new_session=True, **streams)

    start = replace_dead

    def deploy(self):
        """Begin to replace every process, as a rolling deploy does."""
        self._to_stop = list(self.processes)

    def _continue_deploy(self):
        process, until = self._leaving or (None, 0.0)
        if process is not None and process.poll() is None:
            if time.monotonic() > until:
                process.kill()
                process.wait()
        elif self._to_stop:
            process = self._to_stop.pop()
            process.send_signal(signal.SIGTERM)
            self._leaving = process, time.monotonic() + GRACE_S

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()
        self._slots = [None] * len(self._slots)


class Client:
    """A process that enqueues in the project's environment."""

    def __init__(self, command, log):
        self._command, self._log = command, log
        self._process = None

    def enqueue(self, run):
        """Enqueue a run; return whether it was accepted. A client that does not answer is replaced, and the run does not count."""
        if self._process is None or self._process.poll() is not None:
            with self._log.open("ab") as out:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out
                )
        self._process.stdin.write(f"{run}\n".encode())
        self._process.stdin.flush()
        is_answered = select.select([self._process.stdout], [], [], ANSWER_S)[0]
        answer = self._process.stdout.readline() if is_answered else b""
        if not answer:
            self.close()
        return answer == b"accepted\n"

    def close(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
