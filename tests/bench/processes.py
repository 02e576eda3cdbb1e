"""Processes of the benchmark's own that listen on a port."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextmanager
def listening(module: str, *arguments: str) -> Iterator[int]:
    """Run a module that prints the port on which it listens, and yield that port."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()
