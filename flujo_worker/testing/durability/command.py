"""An engine whose process is a command: a script that calls `serve`, in an environment of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from flujo_worker.testing.durability.job import FOLDER, Job
from flujo_worker.testing.durability.judging import State
from flujo_worker.testing.durability.workloads import Durable, Perform, workload

PATIENCE_S: Final = 90.0
WAITS_S: Final = 1.0
"""Seconds from a question to the wait for its answer."""


class CommandEngine:
    """Performs jobs by a command, to which workload and job are added, or `answer` and the job.

    Args:
        command: its first words, which begin with a Python.
        folder: of the jobs.
        environment: further variables.
    """

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder, self._command = folder, list(command)
        root = str(Path(__file__).parents[3])
        self._environment = {**os.environ, "PYTHONPATH": root, FOLDER: str(folder), **(environment or {})}

    def work(self, workload: str, job: str) -> State:
        """Run the command until it ends, or until it asks, and end it then."""
        files = Job(self.folder, job)
        log, asked, until = files.path("log"), files.count("asks"), time.monotonic() + PATIENCE_S
        with log.open("ab") as out:
            process = self._started([*self._command, workload, job], out)
        try:
            while process.poll() is None and time.monotonic() < until:
                if files.count("asks") > asked:
                    time.sleep(WAITS_S)
                    return State("asks")
                time.sleep(0.02)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if time.monotonic() < until and process.returncode == -signal.SIGKILL:
            return State("dead")
        if process.returncode or not files.path("ended").exists():
            return State("failed", f"{process.returncode}: {log.read_text(errors='replace')[-400:]}")
        return State(**json.loads(files.path("ended").read_text()))

    def answer(self, job: str) -> None:
        """Run the command with `answer`."""
        if code := self._started([*self._command, "answer", job]).wait():
            raise RuntimeError(f"{self._command} could not answer: it ended with {code}")

    def has(self, module: str) -> bool:
        """Ask the command's Python."""
        return not self._started([self._command[0], "-c", f"import {module}"], subprocess.DEVNULL).wait()

    def _started(self, command: Sequence[str], out: Any = None) -> subprocess.Popen[bytes]:
        environment = self._environment
        return subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)  # noqa: S603


def serve(
    durable: Durable,
    *,
    work: Callable[[Perform, str], Coroutine[Any, Any, str]],
    answer: Callable[[str], Coroutine[Any, Any, object]],
) -> None:
    """Be the command: perform the job that the arguments name, or answer it.

    Args:
        durable: how agents are made durable.
        work: begins the job with this name, or goes on with it, and returns what the workload returns.
        answer: says yes to what the job asks.
    """
    name, job = sys.argv[1:]
    if name == "answer":
        asyncio.run(answer(job))
    else:
        perform = workload(name, durable)
        try:
            ended = State("done", asyncio.run(work(perform, job)))
        except Exception as error:  # noqa: BLE001 - whatever an engine raises
            ended = State("failed", f"{type(error).__name__}: {error}")
        Job.read(job).path("ended").write_text(json.dumps(vars(ended)))
    os._exit(0)  # some engines' threads do not end
