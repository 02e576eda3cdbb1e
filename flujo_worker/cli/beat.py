"""`flujo beat`: thin over `celery beat`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flujo_client.contract.envelope import TASK_HEALTH_CHECK, TASK_SWEEP
from flujo_client.wire import SERIALIZER
from flujo_worker.app import FlujoWorker
from flujo_worker.cli.parent import follow, parent_option

if TYPE_CHECKING:
    from flujo_client.config import Settings

SWEEP_EVERY_S = 10.0


@click.command("beat")
@parent_option
def command(*, parent: int | None) -> None:
    """Send the scheduled tasks. Two beats are harmless, and workers sweep by themselves when there is none."""
    follow(parent)
    worker = FlujoWorker()
    worker.app.conf.beat_schedule = schedule(worker.settings)
    # The schedule is ours and constant, so nothing is kept in a file.
    worker.app.start(["beat", "--scheduler=celery.beat:Scheduler", f"--loglevel={worker.settings.log.level}"])


def schedule(settings: Settings) -> dict[str, dict[str, Any]]:
    """What is sent, and how often: Celery's `beat_schedule`, for an app of yours too."""
    times = {TASK_SWEEP: SWEEP_EVERY_S, TASK_HEALTH_CHECK: settings.health.every_s}
    return {
        task: {
            "task": task,
            "schedule": every_s,
            "options": {"queue": settings.worker.control_queue, "expires": every_s, "serializer": SERIALIZER},
        }
        for task, every_s in times.items()
    }
