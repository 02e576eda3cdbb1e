"""How the benchmark talks to a side: it writes a workload's name to the side's stdin, and reads one line of JSON.

A side is a process that runs workloads: our product of some checkout, bare Celery, or another project in an environment of
its own. Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TextIO

DATABASE, BROKER, STREAMED = "FLUJO_BENCH_DATABASE", "FLUJO_BENCH_BROKER", "FLUJO_BENCH_STREAMED"
Figures = dict[str, list[float]]
"""Values by figure: seconds a step where nothing else is said."""


def own_stdout() -> TextIO:
    """Take stdout for answers: what anybody else prints there from now on, such as the log of a worker, goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def serve(workloads: Mapping[str, Callable[[], tuple[int, Figures]]], answers: TextIO | None = None) -> None:
    """Run workloads by name until stdin ends."""
    answers = answers or own_stdout()

    def answer(**values: Any) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    answer(offers=sorted(workloads))
    for line in sys.stdin:
        try:
            steps, figures = workloads[line.strip()]()
        except Exception as error:  # noqa: BLE001 - it is told, and the next workload may succeed
            traceback.print_exc()
            answer(failed=f"{type(error).__name__}: {error}")
        else:
            answer(steps=steps, figures=figures)


def timed(name: str, steps: int, work: Callable[[], object], times: int = 1) -> tuple[int, Figures]:
    """Run some times, and give how many steps that were, and the seconds that each took."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        took.append((time.perf_counter() - began) / steps)
    return steps * times, {name: took}
