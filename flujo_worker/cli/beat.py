"""`flujo beat`: the scheduled sweep and the scheduled health check, thin over Celery's own.

It only saves time: workers sweep by themselves, and the health check can be made by hand.
"""

from __future__ import annotations

import logging
from functools import partial
from signal import SIGINT, SIGTERM, signal
from typing import Any, NoReturn

import click
from celery.apps.beat import Beat
from celery.beat import Scheduler, Service

from flujo_client.config.manager import Settings
from flujo_client.contract.envelope import TASK_HEALTH_CHECK, TASK_SWEEP
from flujo_client.transport.wire import SERIALIZER
from flujo_worker.celery_app.app import FlujoWorker
from flujo_worker.cli.supervise import follow, parent_option
from flujo_worker.liveness.heartbeat import Heartbeat
from flujo_worker.observe.log import configure

logger = logging.getLogger(__name__)

SWEEP_EVERY_S = 10.0
LOOK_EVERY_S = 1


class ObservedScheduler(Scheduler):
    """Holds the schedule in memory, because it is constant, and notifies the heartbeat of each task that was sent."""

    is_stopping = False

    def __init__(self, *args: Any, heartbeat: Heartbeat, **kwargs: Any) -> None:
        self._heartbeat = heartbeat
        super().__init__(*args, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_stopping:
            raise SystemExit
        return super().tick(*args, **kwargs)

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        sent = super().apply_async(*args, **kwargs)
        self._heartbeat.beat()
        return sent


class SignalledBeat(Beat):
    """Stops at a signal wherever it finds the process.

    Celery's own handler closes the connection that the interrupted code may be using. An exception alone is lost where the interrupted
    code swallows it, as finalizers do: the next tick raises it again.
    """

    def install_sync_handler(self, service: Service) -> None:
        scheduler: Any = service.scheduler

        def stop(*_: object) -> NoReturn:
            scheduler.is_stopping = True
            raise SystemExit

        for number in (SIGTERM, SIGINT):
            signal(number, stop)


@click.command("beat")
@parent_option
def command(*, parent: int | None) -> None:
    """Send the scheduled tasks. Two beats are harmless, and workers sweep by themselves when there is none."""
    follow(parent)
    worker = FlujoWorker()
    configure(worker.settings.log)
    worker.app.conf.beat_schedule = schedule(worker.settings)
    heartbeat = Heartbeat(worker.settings.worker.heartbeat_file)
    heartbeat.begin()
    logger.info("beat is up")
    try:
        SignalledBeat(
            app=worker.app,
            max_interval=LOOK_EVERY_S,
            scheduler_cls=partial(ObservedScheduler, heartbeat=heartbeat),  # type: ignore[arg-type]  # what makes one will do
            loglevel=worker.settings.log.level,
            quiet=True,
        ).run()
    finally:
        heartbeat.end()


def schedule(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return what is sent, and how often: Celery's `beat_schedule`, also for your own app."""
    times = {TASK_SWEEP: SWEEP_EVERY_S, TASK_HEALTH_CHECK: settings.health.every_s}
    return {
        task: {
            "task": task,
            "schedule": every_s,
            "options": {"queue": settings.worker.control_queue, "expires": every_s, "serializer": SERIALIZER},
        }
        for task, every_s in times.items()
    }
