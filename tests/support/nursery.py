"""Workers without their second of imports: forked from a process that has imported what every worker does, and started nothing.

Run as a script it is that process: orders come in on stdin, a line each, answers go out on stdout. Imported, it is who orders: the
test processes of a run share one, each in its turn. What is forked continues as `python -m flujo_worker` or `python -m celery` does, with an environment, its own folder, search path and log; it can be
killed, and a worker of ours ends when whoever forked it is gone. It must not be used where the start itself is tested: `flujo up`, `flujo demo`
and the facade start theirs as users do.
"""

from __future__ import annotations

import fcntl
import gc
import itertools
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

IMPORTS = (
    "flujo_client.pipeline.loop",
    "flujo_client.pipeline.map",
    "flujo_client.pipeline.parallel",
    "flujo_worker.agents.durable_library",
    "flujo_worker.agents.models",
    "flujo_worker.agents.requests",
    "flujo_worker.agents.response_check",
    "flujo_worker.agents.structured",
    "flujo_worker.attempts.precheck",
    "flujo_worker.cli.serving",
    "flujo_worker.cli.worker",
    "flujo_worker.domain.step",
    "flujo_worker.engine.host",
    "anyio._backends._asyncio",
    "billiard.pool",
    "celery.__main__",
    "celery.app.control",
    "celery.app.events",
    "celery.app.log",
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.bin.worker",
    "celery.concurrency.prefork",
    "celery.concurrency.thread",
    "celery.fixups.django",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer.delayed_delivery",  # from Celery 5.5 on
    "encodings.ascii",
    "encodings.idna",
    "genai_prices.data",
    "kombu.transport.redis",
    "pydantic_ai.models.function",
)
PARENT = "--parent="
CODE = Path(__file__).parents[2]
"""What is forked runs the code beside these tests."""


class Forked:
    """A forked worker, with what of `subprocess.Popen` its owners use."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid, self.returncode = pid, None
        self._nursery = nursery

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._nursery.ask({"status of": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until, pause = time.monotonic() + (float("inf") if timeout is None else timeout), 0.002
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout)
            time.sleep(pause)
            pause = min(1.5 * pause, 0.05)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that forks, as seen by whoever orders. It ends with the last process that has it."""

    def __init__(self) -> None:
        from flujo_worker.celery_app.consumer.pool import POOL

        ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
        environment = {**os.environ, "PYTHONPATH": str(CODE)}  # whatever a test has just made of it
        environment["CELERY_CUSTOM_WORKER_POOL"] = POOL  # which Celery reads when it is imported
        self._process = subprocess.Popen([sys.executable, __file__], text=True, env=environment, **ends)
        self._thread_turn = threading.Lock()
        self._process_turn = tempfile.TemporaryFile()  # noqa: SIM115 - it lasts as long as this process
        self._numbers = itertools.count()

    def fork(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        folder: Path | None = None,
        module: str = "flujo_worker",
    ) -> Forked:
        """Start a worker with these arguments of `python -m flujo_worker`, or of another module's, such as Celery's."""
        where = {"log": str(log), "folder": str(folder or Path.cwd())}
        return Forked(self, self.ask({"arguments": arguments, "environment": environment, "module": module, **where}))

    def ask(self, order: Mapping[str, Any]) -> Any:
        number = [os.getpid(), next(self._numbers)]
        with self._thread_turn:
            fcntl.lockf(self._process_turn, fcntl.LOCK_EX)  # which a forked process does not inherit
            try:
                self._process.stdin.write(json.dumps([number, order]) + "\n")
                self._process.stdin.flush()
                return self._answer(number)
            finally:
                fcntl.lockf(self._process_turn, fcntl.LOCK_UN)

    def _answer(self, number: list[int]) -> Any:
        """Read the answer to this order; one that was interrupted has left its own."""
        while True:
            answered, answer = json.loads(self._process.stdout.readline())
            if answered == number:
                return answer


@cache
def nursery() -> Nursery:
    """The one of this testing process, and of those that it forks from now on."""
    return Nursery()


def main() -> str:
    """Fork whenever it is ordered, until no one can order any more. Returns in what was forked alone: the module that it is."""
    gc.disable()
    for each in filter(find_spec, IMPORTS):
        import_module(each)
    assert threading.active_count() == 1, "only the thread that forks would be in what is forked"
    gc.freeze()
    gc.enable()
    ended: dict[int, int] = {}
    while line := sys.stdin.readline():
        number, order = json.loads(line)
        if "status of" in order:
            answer = status(order["status of"], ended)
        elif (answer := os.fork()) == 0:
            module = order.pop("module")
            become(**order)
            return module
        else:
            ended.pop(answer, None)  # whoever had its number before
        print(json.dumps([number, answer]), flush=True)
    sys.exit()


def status(pid: int, ended: dict[int, int]) -> int | None:
    """The exit code of what was forked, as `subprocess` tells it; None while it runs."""
    if pid not in ended:
        gone, how = os.waitpid(pid, os.WNOHANG)
        if gone:
            ended[pid] = os.waitstatus_to_exitcode(how)
    return ended.get(pid)


def become(arguments: Sequence[str], environment: Mapping[str, str], log: str, folder: str) -> None:
    """Make of this process what `python -m` would have been."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    asked = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [folder, *asked, *(each for each in sys.path if each != str(Path(__file__).parent))]
    sys.argv[1:] = [f"{PARENT}{os.getppid()}" if each.startswith(PARENT) else each for each in arguments]
    with Path(os.devnull).open() as nothing, Path(log).open("ab") as printed:
        os.dup2(nothing.fileno(), 0)
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)


if __name__ == "__main__":
    runpy.run_module(main(), run_name="__main__", alter_sys=True)
