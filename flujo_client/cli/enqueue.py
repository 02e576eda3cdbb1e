"""`flujo enqueue`: record a run and print its id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flujo_client.api.client import FlujoClient
from flujo_client.cli.inputs import input_options, limit_options
from flujo_client.cli.output import say, show_json, show_value
from flujo_client.gateway import requests

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def _pairs(_: click.Context, __: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    if wrong := next((each for each in given if not each.partition("=")[0] or "=" not in each), None):
        raise click.BadParameter(f"'{wrong}' is not written as key=value")
    return dict(each.split("=", 1) for each in given)


@click.command("enqueue")
@click.argument("reference")
@input_options
@limit_options
@click.option("--idempotency-key", metavar="KEY", help="The same key again gives the same run.")
@click.option("--queue", help="The Celery queue of steps that name none.")
@click.option("--priority", type=click.IntRange(0, 9), help="0 is served first.")
@click.option("--tenant", default="", help="Whom the run belongs to.")
@click.option(
    "--deadline",
    "deadline_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="The run expires after that.",
)
@click.option("--metadata", multiple=True, callback=_pairs, metavar="KEY=VALUE", help="Kept with the run; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print {id, is_new}.")
def command(*, reference: str, value: Any, context: Mapping[str, Any] | None, as_json: bool, **options: Any) -> None:
    """Enqueue the pipeline at REFERENCE, 'package.module:attribute' or a blueprint's YAML file, and print the run's id.

    The input is --input, else FLUJO_INPUT, else what is piped to stdin, else empty.
    """
    with FlujoClient() as client:
        run = client.enqueue(reference, value, context=context, **options)
        if as_json:
            show_json({"id": run.id, "is_new": run.is_new})
        else:
            show_value(run.id)
        if not run.is_new:
            say("enqueued before, under this key")
        if not any(worker.is_live for worker in client.ask(requests.workers())):
            say("no worker is running: the run waits for `flujo worker` or `flujo up`")
