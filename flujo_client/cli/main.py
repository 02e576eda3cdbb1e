"""The `flujo` command itself. A command's module is imported when it is used, so that `flujo --help` stays fast.

The commands for operators belong to the worker: they are entry points of the group `flujo.commands`, which you can extend.
"""

from __future__ import annotations

import sys
from difflib import get_close_matches
from pathlib import Path

import click

from flujo_client.cli.entry import listen
from flujo_client.cli.options import option
from flujo_client.cli.plugins import ErrorHandlingGroup, no_worker

DEBUG = "--debug"
_OURS = {
    "new": "Make a small project that runs right away.",
    "run": "Run a pipeline and wait for its result.",
    "validate": "Find every problem in a pipeline.",
    "enqueue": "Enqueue a pipeline and print the run's id.",
    "status": "Show the services, the workers and what is waiting.",
    "doctor": "Find problems of this deployment, with the line to change.",
    "lens": "Look at runs: list, show, trace, watch, stats, spend.",
    "schedules": "Add, list and pause schedules, which begin runs at certain times.",
    "runs": "List, cancel and retry runs.",
    "spend": "Compare what was spent with a provider's own count.",
    "ui": "Open a page on this machine: where runs stopped, and why.",
    "metrics": "Serve the fleet's metrics for Prometheus.",
    "approvals": "List and answer approval requests.",
    "send": "Send an event to a run that waits for it.",
    "breakers": "List and change circuit breakers of models.",
    "rates": "List and change rate limits of models.",
    "dev": "Operate pipelines: health-check, show-config, env, budgets, alive.",
}
_OPERATORS = {
    "up": "Start all services and workers on this machine, and keep them running.",
    "worker": "Run one worker process.",
    "beat": "Run the scheduler.",
    "migrate": "Bring the database schema up to date.",
    "demo": "See Flujo at work; needs no running services.",
    "chaos": "Break services and workers at random, and check that nothing is lost or done twice.",
}


_HOMES = {
    **{name: f"flujo_client.cli.{name}:command" for name in _OURS},
    **{name: f"flujo_client.cli.model_guards:{name}" for name in ("breakers", "rates")},
    "send": "flujo_client.cli.approvals:send",
}


class _Flujo(ErrorHandlingGroup):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accept `--debug` at any position."""
        end = args.index("--") if "--" in args else len(args)
        others = [each for each in args[:end] if each != DEBUG]
        given = [DEBUG] if len(others) < end else []
        return super().parse_args(ctx, [*given, *others, *args[end:]])

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(dict.fromkeys([*_OURS, *_OPERATORS, *super().list_commands(ctx)]))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is None and cmd_name in _OPERATORS:
            raise no_worker(cmd_name, "the worker's package is not installed")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; for a name that no command has, say which may be meant: click looks among those that are imported."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            if not args[0].startswith("-") and (near := get_close_matches(args[0], self.list_commands(ctx), 1)):
                ctx.fail(f"No such command '{args[0]}'. Did you mean '{near[0]}'?")
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """List the commands from the tables above: click would import every command for its help."""
        others = {name: f"From {point.value}." for name, point in self.joined().items() if name not in _OPERATORS}
        for title, commands in (("Pipelines", _OURS), ("Operators", _OPERATORS), ("Others", others)):
            if commands:
                with formatter.section(title):
                    formatter.write_dl(list(commands.items()))


@click.group(
    name="flujo",
    cls=_Flujo,
    homes=_HOMES,
    points="flujo.commands",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="flujo-worker", prog_name="flujo")
@option(
    "-A",
    "--app",
    metavar="NAME",
    help="Your Celery app, as for `celery -A`: services that neither flujo.toml nor a variable names are its own.",
)
@option(DEBUG, is_flag=True, envvar="FLUJO_DEBUG", help="Show the traceback of an error; accepted anywhere.")
def cli(*, app: str | None, debug: bool) -> None:
    """Durable pipelines of LLM agents on Celery, Redis and Postgres.

    Data goes to stdout, messages to stderr. Exit codes: 0 ok, 1 runtime, 2 configuration or usage, 3 import, 4 validation,
    130 interrupted.
    """
    del debug  # the group reads it when something went wrong
    if app is not None:
        from flujo_client.config.app_settings import find_app
        from flujo_client.config.manager import ConfigManager

        ConfigManager.attached = find_app(app)


def main() -> None:
    """Run the console script: look for `module:attribute` in the working directory first, as `python -m` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a terminal that lacks a letter is not an error
    cli()


if __name__ == "__main__":
    listen()
    main()
