"""`flujo beat`: thin over `celery beat`."""

from __future__ import annotations

import click

from flujo_client.contract.envelope import TASK_SWEEP
from flujo_worker.app import FlujoWorker

SWEEP_EVERY_S = 10.0


@click.command("beat")
def command() -> None:
    """Send the scheduled tasks. Two beats are harmless, and workers sweep by themselves when there is none."""
    worker = FlujoWorker()
    control = worker.settings.worker.control_queue
    worker.app.conf.beat_schedule = {
        "flujo-sweep": {
            "task": TASK_SWEEP,
            "schedule": SWEEP_EVERY_S,
            "options": {"queue": control, "expires": SWEEP_EVERY_S, "serializer": "flujo"},
        }
    }
    # The schedule is ours and constant, so nothing is kept in a file.
    worker.app.start(["beat", "--scheduler=celery.beat:Scheduler", f"--loglevel={worker.settings.log.level}"])
