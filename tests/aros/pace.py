"""Processor time that does not depend on what else the machine does: compared with a fixed task, before and after.

In: a call; out: its result, and the seconds it takes on the machine of the published figures when that is idle.
"""

import re
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PACE_S = 0.0024
"""What the fixed task took there."""
_DIGIT, _DIGITS = re.compile(r"\d"), "1 " * 20_000


def paced(call: Callable[[], T]) -> tuple[T, float]:
    """Return the result of a call, and its seconds of processor time."""
    before, start = _pace(), time.thread_time()
    result = call()
    took_s = time.thread_time() - start
    return result, took_s / max(1.0, min(before, _pace()) / PACE_S)


def _pace() -> float:
    start = time.thread_time()
    for found in _DIGIT.finditer(_DIGITS):
        found.start()
    return time.thread_time() - start
