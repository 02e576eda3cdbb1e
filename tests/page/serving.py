"""Processes that serve the page."""

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving(settings, *command):
    """Start a process that prints the address of the page, and yield that address."""
    environment = {**os.environ, **settings.as_environment(), "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield next(line.split()[-1].rstrip("/") for line in process.stdout if "http://" in line)
        finally:
            process.terminate()
