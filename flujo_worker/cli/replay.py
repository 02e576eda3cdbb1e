"""`flujo lens replay`: decide a run again from what was recorded, and show the first difference."""

from dataclasses import asdict

import click

from flujo_client.api.client import FlujoClient
from flujo_client.cli.lookup import find_run, run_argument
from flujo_client.cli.output import OK, RUNTIME, CommandResult, printed, say
from flujo_client.gateway import requests
from flujo_worker.replay.replay import replay

MOST_CHILDREN = 100_000


@click.command("replay")
@run_argument
@printed("Print the result as JSON.")
def command(*, run: str) -> CommandResult:
    """Decide a run again with the code that is here: no model and no user code is called, and nothing is written.

    Exit code 1: something is decided otherwise than it was.
    """
    with FlujoClient() as client:
        found = find_run(client, run)
        replayed = replay(
            client.ask(requests.recording(found.id)),
            client.ask(requests.notices(found.id)),
            client.ask(requests.scopes(found.id)),
            client.list_runs(parent=found.id, limit=MOST_CHILDREN),
        )
    is_same = replayed.difference is None
    how = ", all as recorded" if is_same else f" as recorded, then: {replayed.difference}"
    text = f"{replayed.run}: {replayed.notices} decisions{how}"
    return CommandResult(asdict(replayed), lambda: say(text), OK if is_same else RUNTIME)
