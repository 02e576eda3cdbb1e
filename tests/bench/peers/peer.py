"""What the sides of other projects have in common: their worker processes, and the workloads in terms of a few calls."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

from tests.bench.protocol import DATABASE, Figures, serve, timed
from tests.bench.workloads import FANS, KILLS, W1_RUNS, W1_STEPS, W2_RUNS, W2_STEPS

PATIENCE_S = 200.0


class Peer:
    """One project: what its client and its workers do.

    Attributes:
        workers: how many worker processes it takes next to the client; 0 where the client runs the work itself, and a
            process of its own is killed in W7.
        processes: those processes.
    """

    workers: ClassVar[int] = 2
    processes: Workers

    def __init__(self) -> None:
        self.database = os.environ[DATABASE]
        self.with_host = self.database.replace("@/", "@localhost/")  # for drivers that want one next to the socket

    async def prepare(self) -> None:
        """Make tables."""

    async def open(self) -> None:
        """Connect the client."""

    async def close(self) -> None:
        """Disconnect the client."""

    async def lines(self, runs: int, steps: int) -> None:
        """Run so many lines of no-op steps at once, and wait until they have ended."""
        raise NotImplementedError

    async def fan(self, branches: int) -> None:
        """Run no-op branches side by side, and wait until they are joined."""
        raise NotImplementedError

    async def linger(self, journal: str) -> None:
        """Have one step run that lasts; it begins with `note`."""
        raise NotImplementedError

    async def work(self) -> None:
        """Be a worker process."""
        raise NotImplementedError


async def note(journal: str) -> None:
    """Write down that the step runs, and last."""
    with open(journal, "a") as file:  # noqa: ASYNC230, PTH123 - one line
        file.write(f"{os.getpid()}\n")
    await asyncio.sleep(300)


async def poll(condition: Callable[[], Awaitable[bool]], every: float = 0.02) -> None:
    """Wait until a condition holds; projects that tell when they are done need no such thing."""
    until = time.monotonic() + PATIENCE_S
    while not await condition():
        if time.monotonic() > until:
            raise TimeoutError("it did not end")
        await asyncio.sleep(every)


class Workers:
    """Worker processes of a module, each ended with the side."""

    def __init__(self, module: str, count: int) -> None:
        self._command = [sys.executable, "-m", module, "--worker"]
        self._count = count
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self.processes = [each for each in self.processes if each.poll() is None]
        while len(self.processes) < self._count:
            self.processes.append(subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))

    def stop(self) -> None:
        for each in self.processes:
            each.kill()
            each.wait()


def recover(loop: asyncio.AbstractEventLoop, peer: Peer, workers: Workers) -> tuple[int, Figures]:
    """Kill the worker that runs a step, start another one at once, and see how soon the step runs again."""
    waits = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(int(os.environ.get(KILLS, "2"))):
            journal = Path(folder) / f"started{number}"
            loop.run_until_complete(peer.linger(str(journal)))
            wait_for_starts(journal, 1)
            time.sleep(1)
            os.kill(int(journal.read_text().split()[0]), signal.SIGKILL)
            began = time.monotonic()
            time.sleep(0.05)
            workers.start()
            wait_for_starts(journal, 2)
            waits.append(time.monotonic() - began)
            if not peer.workers:
                workers.stop()
    return len(waits), {"W7": waits}


def wait_for_starts(journal: Path, count: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while not journal.exists() or len(journal.read_text().split()) < count:
        if time.monotonic() > until:
            raise TimeoutError(f"the step did not run again within {PATIENCE_S:.0f} s")
        time.sleep(0.02)


def main(peer: Peer, module: str) -> None:
    """Be a worker, or the side."""
    options = argparse.ArgumentParser()
    options.add_argument("--worker", action="store_true")
    options.add_argument("--processes", type=int, default=2)
    chosen = options.parse_args()
    if chosen.worker:
        asyncio.run(peer.work())
        return
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(peer.prepare())
    peer.processes = workers = Workers(module, peer.workers or 1)
    if peer.workers:
        workers.start()
    try:
        loop.run_until_complete(peer.open())
        loop.run_until_complete(peer.lines(4, 2))

        def run(call: Callable[..., Awaitable[None]], *values: int) -> Callable[[], None]:
            return lambda: loop.run_until_complete(call(*values))

        serve(
            {
                "W1": partial(timed, "W1", W1_STEPS, run(peer.lines, 1, W1_STEPS), W1_RUNS),
                "W2": partial(timed, "W2", W2_RUNS * W2_STEPS, run(peer.lines, W2_RUNS, W2_STEPS)),
                **{f"W3 {n}": partial(timed, f"W3 {n}", n, run(peer.fan, n)) for n in FANS},
                "W7": partial(recover, loop, peer, workers),
            }
        )
        loop.run_until_complete(peer.close())
    finally:
        workers.stop()
