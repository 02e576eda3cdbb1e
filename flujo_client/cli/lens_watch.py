"""`flujo lens watch`: a run's events as they happen, a line for each, until the run has ended.

The events are data and go to stdout; the run's summary, its open questions and its end go to stderr. Child runs have their own event
streams, so their questions are read separately.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import click

from flujo_client.api.client import FlujoClient
from flujo_client.api.handle import RunHandle
from flujo_client.cli.json_output import event_shape
from flujo_client.cli.lookup import find_run, run_argument
from flujo_client.cli.output import print_status, say, show, show_json
from flujo_client.cli.render import PREVIEW
from flujo_client.cli.story import event_line, question_lines, summary
from flujo_client.cli.timeouts import timeout_option, with_retry
from flujo_client.contract.approval import Approval
from flujo_client.contract.records import EventRecord
from flujo_client.errors import ServiceUnreachable

LOOK_EVERY_S = 0.5
AT_ONCE = 1000
"""So many events are read ahead of what is shown."""
preview_option = click.option(
    "--prompt-preview-len",
    "preview",
    type=click.IntRange(min=-1),
    default=PREVIEW,
    show_default=True,
    help="Characters shown of an event's values; -1 for all.",
)


@click.command("watch")
@run_argument
@click.option("--after", metavar="CURSOR", help="Only events after the one with this cursor.")
@preview_option
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print one event a line, each a JSON object.")
def watch_run(*, run: str, after: str | None, preview: int, timeout: float, as_json: bool) -> None:
    """Follow a run until it has ended: when (by this machine's time zone), at which step, and what happened.

    Ctrl-C ends the watching, not the run.
    """
    with FlujoClient() as client:
        handle = with_retry(timeout, lambda: find_run(client, run))
        record = handle.record()
        if record.is_live:
            say(summary(record))
        for event in _follow(handle, after):
            if isinstance(event, Approval):
                print_status(question_lines(event))
            elif as_json:
                show_json(event_shape(event), in_a_line=True)
            else:
                show(event_line(event, preview))
        say(summary(handle.record()))


def _follow(handle: RunHandle, after: str | None) -> Iterator[EventRecord | Approval]:
    """Return each event, and each question once it is seen to be open."""
    events: queue.Queue[EventRecord | Exception | None] = queue.Queue(AT_ONCE)
    threading.Thread(target=_read_events, args=(handle, after, events), daemon=True).start()
    seen: set[str] = set()
    look_at = time.monotonic() + LOOK_EVERY_S
    while True:
        with suppress(queue.Empty):
            each = events.get(timeout=max(0.0, look_at - time.monotonic()))
            if each is None:
                return
            if isinstance(each, Exception):
                raise each
            yield each
        if time.monotonic() >= look_at:
            yield from _questions(handle, seen)
            look_at = time.monotonic() + LOOK_EVERY_S


def _read_events(handle: RunHandle, after: str | None, events: queue.Queue[EventRecord | Exception | None]) -> None:
    try:
        for event in handle.follow(after):
            events.put(event)
        events.put(None)
    except Exception as error:  # noqa: BLE001 - the thread that prints the events raises it
        events.put(error)


def _questions(handle: RunHandle, seen: set[str]) -> Iterator[Approval]:
    with suppress(ServiceUnreachable):  # Postgres was there before: it may only be restarting
        for approval in handle.approvals():
            if approval.key not in seen:
                seen.add(approval.key)
                yield approval
