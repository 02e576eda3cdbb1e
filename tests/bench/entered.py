"""Count the modules and functions that an empty step enters: `python -m tests.bench.entered`.

Two runs of twenty empty steps are delivered in the local engine. Only the second counts, when all code is loaded and each step was performed
before. The store in memory and the modules of the local engine itself are left out.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import flujo_client
import flujo_worker
from flujo_client import Pipeline, Step
from flujo_worker.testing import LocalEngine

STEPS = 20
OURS = tuple(str(Path(str(package.__file__)).parent) for package in (flujo_client, flujo_worker))
LEFT_OUT = ("flujo_worker/store/memory/", "flujo_worker/testing/", "concurrency/lateness.py")
"""The store, the engine for tests, and what the loop calls by itself."""


class Entered(NamedTuple):
    """How many modules and functions the steps of one run entered."""

    modules: int
    functions: int
    calls_per_step: int


async def nothing(data: Any) -> Any:
    return data


class Recorder:
    """Counts the calls of our functions in all threads that are started from now on."""

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()
        self.is_on = False
        threading.setprofile(self._record)
        sys.setprofile(self._record)

    def _record(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if not self.is_on or event != "call" or threading.current_thread().name == "flujo-watchdog":
            return
        if code.co_filename.startswith(OURS) and not code.co_name.startswith("<"):
            self.calls[code] += 1

    def stop(self) -> None:
        threading.setprofile(None)  # type: ignore[arg-type]
        sys.setprofile(None)


def deliver_all(engine: LocalEngine) -> None:
    """Deliver messages until there are none, without the sweeps of `drain`."""
    while engine.bus:
        engine.deliver(engine.bus.popleft())


def measure() -> tuple[Entered, Counter[CodeType]]:
    """Return what a run enters, and how often it enters each function."""
    pipeline = Pipeline([Step(f"step{number}", nothing) for number in range(STEPS)])
    recorder = Recorder()
    try:
        with LocalEngine() as engine:
            _, run = [engine.enqueue(pipeline, "in") for _ in range(2)]
            second = engine.bus.pop()
            deliver_all(engine)
            engine.bus.append(second)
            recorder.is_on = True
            deliver_all(engine)
            recorder.is_on = False
            engine.result(run)
    finally:
        recorder.stop()
    calls = Counter({code: n for code, n in recorder.calls.items() if not any(p in code.co_filename for p in LEFT_OUT)})
    modules = {code.co_filename for code in calls}
    # A generator and a coroutine are "called" each time that they continue, so only functions are compared.
    return Entered(len(modules), len(calls), sum(calls.values()) // STEPS), calls


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.bench.entered", description=__doc__)
    options.add_argument("--names", action="store_true", help="list the functions, and how often a step enters each")
    chosen = options.parse_args()
    entered, calls = measure()
    print(f"{entered.modules} modules, {entered.functions} functions, {entered.calls_per_step} calls per step")
    if chosen.names:
        for code, count in calls.most_common():
            print(f"{count / STEPS:6.2f}  {Path(code.co_filename).name}:{code.co_firstlineno} {code.co_qualname}")


if __name__ == "__main__":
    main()
