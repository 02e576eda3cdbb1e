"""`flujo worker`: what `celery worker` starts, without Celery's own command line, which costs a start a quarter of its time."""

from __future__ import annotations

import logging
import os

import click
from celery import signals
from celery.concurrency import get_available_pool_names

from flujo_client.config.manager import ConfigManager
from flujo_worker.app import FlujoWorker
from flujo_worker.cli.drain import drain
from flujo_worker.cli.parent import follow, parent_option
from flujo_worker.consumer.pool import POOL

INTERRUPTED = "Warm SIGINT"
"""A stop in order, for which Celery has the exit code of a crash: one Ctrl-C."""


@click.command("worker")
@click.option(
    "--concurrency", "-c", type=click.IntRange(min=1), help="The number of attempts that run at once in this process."
)
@click.option("--queues", "-Q", help="The queues to consume, separated by commas; attempts and control by default.")
@click.option(
    "--pool",
    "-P",
    type=click.Choice(["attempts", *get_available_pool_names()]),
    default="attempts",
    show_default=True,
    help="The pool: Flujo's own, or one of Celery's, such as threads, or prefork for CPU-bound steps.",
)
@click.option(
    "--drain", "drains", is_flag=True, help="Run none: tell live ones to stop in order, and wait until they have."
)
@click.argument("names", metavar="[WORKER|HOST]...", nargs=-1)
@parent_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    concurrency: int | None,
    queues: str | None,
    pool: str,
    drains: bool,
    names: tuple[str, ...],
    parent: int | None,
) -> None:
    """Run one worker process. Run one for each core, on as many machines as you like. One that crashed does not exit with 0.

    With --drain, stop the workers with these ids or on these hosts, by default those of this host. Each takes nothing new, finishes what ends
    within worker.shutdown_grace_s, and hands the rest to other workers.
    """
    settings = ConfigManager().settings()
    if drains:
        ctx.exit(drain(settings, names))
    if names:
        raise click.UsageError("workers are named for --drain only")
    follow(parent)
    if concurrency is None and pool == "prefork" and "concurrency" not in settings.worker.model_fields_set:
        concurrency = os.cpu_count()
    if concurrency is not None:
        own = settings.worker.model_copy(update={"concurrency": concurrency})
        settings = settings.model_copy(update={"worker": own})
    flujo = FlujoWorker(settings=settings)
    worker = flujo.app.Worker(
        pool_cls=POOL if pool == "attempts" else pool,
        concurrency=settings.worker.concurrency,
        queues=queues.split(",") if queues else list(flujo.queues),
        loglevel=logging.getLevelNamesMapping()[settings.log.level],
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    arguments: list[str] = []
    signals.worker_shutting_down.connect(lambda sig="", how="", **_: arguments.append(f"{how} {sig}"), weak=False)
    worker.start()
    ctx.exit(0 if arguments == [INTERRUPTED] else worker.exitcode or 0)
