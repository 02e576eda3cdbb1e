"""`flujo enqueue`: record a run and print its id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import click

from flujo_client.api.client import FlujoClient
from flujo_client.api.explanations import hold
from flujo_client.cli.inputs import enqueue_options, input_options, json_lines_option, limit_options
from flujo_client.cli.options import Real, flag, option
from flujo_client.cli.output import say, show_json, show_value
from flujo_client.contract.admission import Singleton, Throttle
from flujo_client.errors import ConfigurationError


def _throttle(_: click.Context, __: click.Parameter, given: str | None) -> Throttle | None:
    if given is None:
        return None
    try:
        most, period_s = given.split("/")
        return Throttle(int(most), float(period_s))
    except (ValueError, ConfigurationError) as error:
        raise click.BadParameter(f"'{given}' must be a number of runs and seconds, such as 100/60") from error


_ASKED = {"idempotency_key": "idempotency-key", "singleton_key": "singleton-key", "debounce_s": "debounce"}
"""The options that --input-jsonl excludes, and how they are written."""
_OF_ONE_RUN = (*_ASKED, "singleton", "debounce_key")


@click.command("enqueue")
@click.argument("reference")
@json_lines_option
@input_options
@limit_options
@option(
    "--idempotency-key", metavar="KEY", help="An idempotency key: enqueueing with the same key returns the same run."
)
@enqueue_options
@option("--delay", "delay_s", type=float, metavar="SECONDS", help="Begin so much later.")
@option("--at", metavar="TIME", help="Begin then: an ISO 8601 time with its zone, such as 2027-01-31T09:00:00+01:00.")
@option(
    "--singleton-key",
    metavar="KEY",
    help="One run of the pipeline and the tenant with this key is under way at most; a text or a template over input and tenant.",
)
@option(
    "--singleton",
    type=click.Choice(get_args(Singleton)),
    default="return",
    show_default=True,
    help="While one is: return it, queue behind it, or replace it.",
)
@option(
    "--debounce",
    "debounce_s",
    type=Real(min=0, min_open=True),
    metavar="SECONDS",
    help="Wait so long; a run that is enqueued meanwhile replaces this one.",
)
@option("--debounce-key", default="", metavar="KEY", help="What separates debounced runs of one pipeline and tenant.")
@option(
    "--throttle",
    callback=_throttle,
    metavar="RUNS/SECONDS",
    help="So many runs of the pipeline and the tenant begin in so many seconds at most, such as 100/60; the others wait.",
)
@option("--stream", is_flag=True, default=None, help="Stream what the run's steps do and say while they run.")
@flag("--json", "as_json", help="Print {id, is_new}; a list of them for --input-jsonl.")
def command(
    *,
    reference: str,
    context: Mapping[str, Any] | None,
    as_json: bool,
    value: Any = None,
    values: Sequence[Any] | None = None,
    **options: Any,
) -> None:
    """Enqueue the pipeline at REFERENCE, 'package.module:attribute' or a blueprint's YAML file, and print the run's id.

    The input is --input, else FLUJO_INPUT, else what is piped to stdin, else empty. --input-jsonl enqueues a run for each line instead.
    """
    alone = {name: options.pop(name) for name in _OF_ONE_RUN}
    if values is not None and (given := next((name for name in _ASKED if alone[name] is not None), None)):
        raise click.UsageError(f"--{_ASKED[given]} works for one run only, and --input-jsonl enqueues many")
    with FlujoClient() as client:
        if values is None:
            runs = [client.enqueue(reference, value, context=context, **alone, **options)]
        else:
            runs = client.enqueue_many(reference, values, context=context, **options)
        shapes = [{"id": run.id, "is_new": run.is_new} for run in runs]
        if as_json:
            show_json(shapes[0] if values is None else shapes)
        else:
            for run in runs:
                show_value(run.id)
        if not all(run.is_new for run in runs):
            say("already enqueued with this key")
        if runs and (held := client.perform(hold(client.settings, runs[0].record()))) is not None:
            say(f"{'the run waits' if len(runs) == 1 else 'the runs wait'}: {held}")
