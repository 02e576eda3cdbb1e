"""`flujo up`, as a person starts and stops it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from fleet import wait_until

pytestmark = [pytest.mark.services, pytest.mark.acceptance]

SERVICES = ("DATABASE_URL", "REDIS_URL", "CELERY_BROKER_URL")


def is_there(search):
    """Looked for ten times a second: what is waited for takes longer, and each look costs a process."""
    time.sleep(0.1)
    return subprocess.run(search, capture_output=True, check=False).returncode == 0


def test_an_interrupt_while_it_starts_ends_it_in_order(tmp_path):
    """Ctrl-C reaches every process of the terminal, so the migration under way must not report it as its failure."""
    alone = {name: text for name, text in os.environ.items() if not name.startswith("FLUJO_") and name not in SERVICES}
    command = [sys.executable, "-m", "flujo_worker", "up"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=alone, start_new_session=True, stderr=subprocess.PIPE, text=True
    ) as up:
        # Found by its command line, so it has been through exec and its session is its own.
        migration = ["pgrep", "-P", str(up.pid), "-f", "flujo_worker migrate"]
        wait_until(lambda: is_there(migration), what="a migration")
        os.killpg(up.pid, signal.SIGINT)
        talk = up.communicate(timeout=60)[1]
    assert (up.returncode, "CONFIGURATION" in talk) == (0, False), talk
    assert subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, check=False).stdout == b""
