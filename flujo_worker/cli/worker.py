"""`flujo worker`: what `celery worker` starts, without Celery's own command line, which costs a start a quarter of its time."""

from __future__ import annotations

import gc
import logging
import os
import sys

import click
from celery import signals
from celery.concurrency import get_available_pool_names

from flujo_client.config.manager import ConfigManager
from flujo_client.config.models import BUILD_NAME, Log
from flujo_worker.app import FlujoWorker
from flujo_worker.cli.drain import drain
from flujo_worker.cli.parent import follow, parent_option
from flujo_worker.consumer.pool import POOL
from flujo_worker.observe.log import configure

COLLECT_EVERY = 10_000
"""Objects between garbage collections. With Python's 700, hundreds of attempts in flight are searched again and again."""
INTERRUPTED = "Warm SIGINT"
"""A stop in order, for which Celery has the exit code of a crash: one Ctrl-C."""


def _build(_ctx: click.Context, _option: click.Parameter, given: str | None) -> str | None:
    if given is not None and not BUILD_NAME.fullmatch(given):
        raise click.BadParameter("use up to 100 letters, digits and . _ + -, the first a letter or a digit")
    return given


def _log_only(log: Log) -> None:
    """Let standard output have the log's lines and nothing else from now on. What Celery says about Ctrl-C is for people at a terminal."""
    configure(log)
    sys.__stdout__ = sys.__stderr__ if sys.stderr.isatty() else None  # type: ignore[misc]


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
    "--drain",
    "drains",
    is_flag=True,
    help="Start no worker: ask live ones to stop in an orderly way, and wait until they have.",
)
@click.option(
    "--build", metavar="NAME", callback=_build, help="What you call the code that this worker has, such as a release."
)
@click.argument("names", metavar="[WORKER|HOST]...", nargs=-1)
@parent_option
@click.pass_context
def command(  # noqa: PLR0913 - one for each option
    ctx: click.Context,
    *,
    concurrency: int | None,
    queues: str | None,
    pool: str,
    build: str | None,
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
        raise click.UsageError("worker names are accepted only with --drain")
    follow(parent)
    gc.set_threshold(COLLECT_EVERY)
    if concurrency is None and pool == "prefork" and "concurrency" not in settings.worker.model_fields_set:
        concurrency = os.cpu_count()
    given = {"concurrency": concurrency, "build": build}
    own = settings.worker.model_copy(update={name: each for name, each in given.items() if each is not None})
    settings = settings.model_copy(update={"worker": own})
    _log_only(settings.log)
    flujo = FlujoWorker(settings=settings)
    worker = flujo.app.Worker(
        pool_cls=POOL if pool == "attempts" else pool,
        concurrency=settings.worker.concurrency,
        queues=queues.split(",") if queues else list(flujo.queues),
        loglevel=logging.getLevelNamesMapping()[settings.log.level],
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    arguments: list[str] = []
    signals.worker_shutting_down.connect(lambda sig="", how="", **_: arguments.append(f"{how} {sig}"), weak=False)
    worker.start()
    ctx.exit(0 if arguments == [INTERRUPTED] else worker.exitcode or 0)
