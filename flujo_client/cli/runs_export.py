"""`flujo runs export`: everything that is recorded of a run, as JSON lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import click

from flujo_client.api.client import FlujoClient
from flujo_client.cli.lookup import find_run
from flujo_client.cli.output import show_json
from flujo_client.contract.outcome import Fault
from flujo_client.gateway import requests
from flujo_client.serial import Packed

PAGE = 1000
MOST_CHILDREN = 100_000


@click.command("export")
@click.argument("run")
def export_run(*, run: str) -> None:
    """Print everything that is recorded of a run and of its child runs, as JSON lines.

    Each line names its `record`: run, attempt, scope, question, correction or event. Values are as they are stored.
    """
    with FlujoClient() as client:
        for line in export_lines(client, find_run(client, run).id):
            show_json(line, in_a_line=True)


def export_lines(client: FlujoClient, run_id: str) -> Iterator[dict[str, Any]]:
    """Yield what is recorded of a run, then of each of its child runs; raises RunNotFound."""
    found = client.ask(requests.run(run_id))
    if found is None:
        raise requests.not_found(run_id)
    records: list[tuple[str, Any]] = [("run", found)]
    records += [("attempt", each) for each in client.ask(requests.attempts(run_id))]
    records += [("scope", each) for each in client.ask(requests.scopes(run_id))]
    records += [("question", each) for each in client.ask(requests.questions(run_id))]
    records += [("correction", each) for each in client.ask(requests.corrections(run_id))]
    for kind, record in records:
        yield _line(client, kind, record)
    after: str | None = None
    while page := client.ask(requests.events(run_id, after=after, limit=PAGE, settled=False)):
        yield from (_line(client, "event", each) for each in page)
        after = page[-1].cursor
    for child in reversed(client.list_runs(parent=run_id, limit=MOST_CHILDREN)):
        yield from export_lines(client, child.id)


def _line(client: FlujoClient, kind: str, record: Any) -> dict[str, Any]:
    written = {each.name: getattr(record, each.name) for each in fields(record)}
    digests = [each.digest for each in written.values() if isinstance(each, Packed) and each.is_reference]
    stored = client.ask(requests.blobs(digests)) if digests else {}
    return {"record": kind, **{name: _plain(value, stored) for name, value in written.items()}}


def _plain(value: Any, stored: Mapping[str, Packed]) -> Any:
    """Write a value as it is stored; of a large one that is gone, what its digest was."""
    if isinstance(value, Fault):
        return value.to_tree()
    if not isinstance(value, Packed):
        return value
    packed = stored.get(value.digest, value) if value.is_reference else value
    return {"digest": value.digest} if packed.is_reference else packed.tree()
