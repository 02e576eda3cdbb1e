"""Compare what nested fan-outs take in several environments, by turns on the same services: a machine's speed drifts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.bench.sides import Services, Side, running
from tests.bench.workloads import PROCESSES
from tests.compat import SENT_AGAIN

WORKLOAD = "nested"
ROUNDS = 7


class Turns(NamedTuple):
    """What one environment showed.

    Attributes:
        ratio: the median of its time against the reference's in the same round.
        sent_again: how many messages a sweep had to send.
    """

    ratio: float
    sent_again: int


def by_turns(pythons: Mapping[str, Path], reference: str) -> dict[str, Turns]:
    """Measure each environment against the one called `reference`."""
    took: dict[str, list[float]] = {name: [] for name in pythons}
    with Services() as services, ExitStack() as stack:
        sides = {name: Side(name, python=python) for name, python in pythons.items()}
        started = {name: stack.enter_context(running(side, services, PROCESSES, None)) for name, side in sides.items()}
        for number in range(ROUNDS):
            for name in pythons if number % 2 == 0 else reversed(pythons):
                took[name] += started[name].ask(WORKLOAD)["figures"][WORKLOAD]
            print(f"{WORKLOAD}: round {number + 1} of {ROUNDS}", file=sys.stderr)
        again = {name: len(each.connection.execute(SENT_AGAIN).fetchall()) for name, each in started.items()}
    ratios = {name: [a / b for a, b in zip(values, took[reference], strict=True)] for name, values in took.items()}
    return {name: Turns(median(values), again[name]) for name, values in ratios.items()}
