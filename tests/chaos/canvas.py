"""The monkey on a plain Celery canvas, with `acks_late` and without anything of ours: `python -m tests.chaos.canvas --seed 1 --duration 60`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from flujo_client.embedded.local import Fleet
from tests.chaos import beside

ROOT = Path(__file__).parents[2]
CELERY = ("-m", "celery", "-A", "tests.chaos.canvas_tasks", "worker", "-P", "threads", "-c", "16", "-l", "WARNING")


class CeleryFleet(Fleet):
    def launch(self, arguments, environment, out):
        command = [sys.executable, *CELERY]
        return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


class Canvas(beside.Side):
    name = "Celery"
    faults = beside.FAULTS | {"Redis flushed", "Redis restarted", "Redis stalled", "connections to Redis cut"}

    def prepare(self, site, log, workers):
        os.environ |= {"CANVAS_BROKER": site.services.broker_url, "CANVAS_DATABASE": site.services.database_url}
        return CeleryFleet(site.settings, processes=workers, log=log)

    def enqueue(self, work):
        from celery import chain, chord

        from tests.chaos.canvas_tasks import act

        if work.startswith("chain"):
            canvas = chain(act.s(None, work, 0), *(act.s(work, step) for step in range(1, 4)))
        else:
            canvas = chord([act.s(None, work, step) for step in range(5)], act.s(work, 5))
        try:
            canvas.apply_async()
        except (OperationalError, RedisError):
            return False
        return True

    def close(self):
        """Do nothing: the client is this process."""


if __name__ == "__main__":
    beside.main(Canvas())
