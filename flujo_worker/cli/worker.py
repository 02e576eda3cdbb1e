"""`flujo worker`: options in, a worker process out, beside a small parent that replaces it when it retires.

What help and the parent have no use for is imported when it is used.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import click

from flujo_client.cli.options import flag
from flujo_worker.cli.supervise import follow, parent_option, supervise

POOLS: Final = ("attempts", "prefork", "solo", "processes", "threads", "custom")
"""Our pool, and those of `celery.concurrency` that need no patches of Python."""


def _build(_ctx: click.Context, _option: click.Parameter, given: str | None) -> str | None:
    if given is not None:
        from flujo_client.config.models import BUILD_NAME

        if not BUILD_NAME.fullmatch(given):
            raise click.BadParameter("use up to 100 letters, digits and . _ + -, the first a letter or a digit")
    return given


@click.command("worker")
@click.option(
    "--concurrency", "-c", type=click.IntRange(min=1), help="The number of attempts that run at once in this process."
)
@click.option("--queues", "-Q", help="The queues to consume, separated by commas; attempts and control by default.")
@click.option(
    "--pool",
    "-P",
    type=click.Choice(POOLS),
    default="attempts",
    show_default=True,
    help="The pool: Flujo's own, or one of Celery's, such as threads, or prefork for CPU-bound steps.",
)
@flag("--drain", "drains", help="Start no worker: ask live ones to stop in an orderly way, and wait until they have.")
@click.option(
    "--build", metavar="NAME", callback=_build, help="What you call the code that this worker has, such as a release."
)
@click.argument("names", metavar="[WORKER|HOST]...", nargs=-1)
@parent_option
def command(*, drains: bool, names: tuple[str, ...], parent: int | None, **options: Any) -> int:
    """Run one worker process. Run one for each core, on as many machines as you like. One that crashed does not exit with 0.

    A small parent process passes signals on to it, replaces it when it retires, and ends as it ends.

    With --drain, stop the workers with these ids or on these hosts, by default those of this host. Each takes nothing new, finishes what ends
    within worker.shutdown_grace_s, and hands the rest to other workers.
    """
    from flujo_client.config.manager import ConfigManager

    settings = ConfigManager().settings()
    if drains:
        from flujo_worker.cli.drain import drain

        return drain(settings, names)
    if names:
        raise click.UsageError("worker names are accepted only with --drain")
    follow(supervise() if parent is None else parent)
    gc.disable()  # until `serve`: searching what is imported for garbage takes a tenth of the start
    code: int = import_serving().serve(settings, **options)
    return code


def import_serving() -> ModuleType:
    """Import what serves, with a structlog that finds no rich, which has a hundred modules and would draw tracebacks on a terminal."""
    hides = "rich" not in sys.modules
    if hides:
        sys.modules["rich"] = None  # type: ignore[assignment]  # Python's own way to say that a module is not there
    try:
        import_module("structlog")
    finally:
        if hides:
            del sys.modules["rich"]
    return import_module("flujo_worker.cli.serving")
