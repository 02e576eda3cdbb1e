"""Commands that users start beside the services of a test."""

import os
import subprocess
import sys
from contextlib import contextmanager


@contextmanager
def running(site, folder, *command, **environment):
    """A command of `python -m` with a site's settings and the modules of a folder, stopped in order at the end."""
    environment = {**os.environ, **site.settings.as_environment(), "PYTHONPATH": str(folder), **environment}
    with (site.folder / "workers.log").open("ab") as log:
        process = subprocess.Popen([sys.executable, "-m", *command], env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)
