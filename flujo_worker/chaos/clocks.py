"""Clocks that are wrong: libfaketime shifts the wall clock of a process by what a file says. Monotonic clocks stay right."""

from __future__ import annotations

from pathlib import Path
from typing import Final

WORKER: Final = """
import os, runpy, sys, threading, time
del os.environ["LD_PRELOAD"]
time.sleep = lambda seconds: threading.Event().wait(seconds) and None
sys.argv[0] = "flujo_worker"
runpy.run_module("flujo_worker", run_name="__main__")
"""
"""Runs a worker under libfaketime, whose processes are not under it: `time.sleep` of Python 3.11 and newer fails with EINVAL there."""
_LIBRARIES: Final = ("usr/lib/*/faketime/libfaketimeMT.so.1", "usr/lib*/faketime/libfaketimeMT.so.1")


def library() -> Path | None:
    """Return where libfaketime is installed, if it is."""
    return next((found for pattern in _LIBRARIES for found in Path("/").glob(pattern)), None)


def environment(file: Path) -> dict[str, str]:
    """Return the variables of a process whose clock a file shifts; none without libfaketime."""
    shift(file, 0)
    if (found := library()) is None:
        return {}
    return {
        "LD_PRELOAD": str(found),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def shift(file: Path, seconds: int) -> None:
    """Shift the clock of the processes that read the file."""
    file.write_text(f"{seconds:+d}\n")
