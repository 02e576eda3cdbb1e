"""`flujo worker`: thin over `celery worker`."""

from __future__ import annotations

import click

from flujo_client.config import ConfigManager
from flujo_worker.app import FlujoWorker


@click.command("worker")
@click.option("--concurrency", "-c", type=click.IntRange(min=1), help="Attempts at once in this process.")
@click.option("--queues", "-Q", help="Comma-separated queues; attempts and control when not given.")
@click.option(
    "--pool", "-P", default="threads", show_default=True, help="Celery's pool: threads, or prefork for CPU-bound steps."
)
def command(*, concurrency: int | None, queues: str | None, pool: str) -> None:
    """Run one worker process. Run one for each core, on as many machines as you like."""
    settings = ConfigManager().settings()
    if concurrency is not None:
        own = settings.worker.model_copy(update={"concurrency": concurrency})
        settings = settings.model_copy(update={"worker": own})
    worker = FlujoWorker(settings=settings)
    options = [
        "worker",
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
        f"--pool={pool}",
        f"--concurrency={settings.worker.concurrency}",
        f"--queues={queues or ','.join(worker.queues)}",
        f"--loglevel={settings.log.level}",
    ]
    worker.app.worker_main(options)
