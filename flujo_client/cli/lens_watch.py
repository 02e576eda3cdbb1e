"""`flujo lens watch`: follow a run, from its rows and, where it is streamed, from its stream: live on a terminal, elsewhere line by line."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import click
from rich.live import Live

from flujo_client.api.client import FlujoClient
from flujo_client.api.handle import RunHandle
from flujo_client.cli.json_output import event_shape
from flujo_client.cli.live_tree import LiveTexts, live_tree
from flujo_client.cli.lookup import LAST, find_run, run_argument
from flujo_client.cli.options import flag, option
from flujo_client.cli.output import print_status, say, show_json, show_rows, stdout
from flujo_client.cli.render import PREVIEW
from flujo_client.cli.story import event_line, question_lines, summary
from flujo_client.cli.timeouts import timeout_option, with_retry
from flujo_client.contract.approval import Approval
from flujo_client.contract.records import LIVE_RUN, EventRecord, RunRecord
from flujo_client.contract.stream import StreamEvent, place_of
from flujo_client.errors import ServiceUnreachable
from flujo_client.explain.sentence import Sentence

LOOK_EVERY_S = 0.5
DRAW_EVERY_S: Final = 0.1
AT_ONCE: Final = 1000
"""The number of events that are read ahead of the shown ones."""

News = EventRecord | StreamEvent
_Queue = queue.Queue[News | Exception | None]


preview_option = option(
    "--prompt-preview-len",
    "preview",
    type=click.IntRange(min=-1),
    default=PREVIEW,
    show_default=True,
    help="Characters shown of an event's values; -1 for all.",
)


@click.command("watch")
@run_argument
@option("--after", metavar="CURSOR", help="Only events after the one with this cursor.")
@preview_option
@timeout_option
@flag("--json", "as_json", help="Print one event a line, each a JSON object.")
@flag("--lines", help="Print one event a line on a terminal too.")
def watch_run(*, run: str, after: str | None, preview: int, timeout: float, as_json: bool, lines: bool) -> None:
    """Follow a run until it has ended; without RUN, the newest that has not ended.

    A terminal shows its steps, what they say if it is streamed, how far they are, their time, tokens and cost. Elsewhere each event is a line: when (by
    this machine's time zone), at which step, and what happened. Ctrl-C ends the watching, not the run.
    """
    with FlujoClient() as client:
        handle = with_retry(timeout, lambda: _find(client, run))
        record = handle.record()
        if stdout.is_terminal and not (as_json or lines or after):
            _watch_live(handle, record)
        else:
            _watch_lines(handle, record, after, preview, as_json=as_json)
        say(summary(handle.record()))


def _find(client: FlujoClient, named: str) -> RunHandle:
    under_way = client.list_runs(parent="", status=LIVE_RUN, limit=1) if named == LAST else []
    return client.get_run(under_way[0].id) if under_way else find_run(client, named)


def _watch_live(handle: RunHandle, record: RunRecord) -> None:
    """Draw the run again and again. Its rows are read as often as that is cheap."""
    texts, news, seen = LiveTexts(), _Queue(AT_ONCE), set[str]()
    if record.is_live and (record.settings or {}).get("stream"):
        _aside(handle.stream(), news)
    trace, wait, look_at = handle.trace(), _wait_of(handle), 0.0
    with Live(console=stdout, auto_refresh=False) as live:
        while True:
            if (began := time.monotonic()) >= look_at:
                with suppress(ServiceUnreachable):  # Postgres was there before: it may only be restarting
                    trace, wait = handle.trace(), _wait_of(handle)
                    for question in _questions(handle, seen):
                        live.console.print(question_lines(question))
                look_at = began + max(LOOK_EVERY_S, 6 * (time.monotonic() - began))
            while not news.empty():
                each = news.get_nowait()
                if isinstance(each, StreamEvent):
                    texts.take(each)
                elif isinstance(each, Exception):
                    live.console.print(f"the text of its steps cannot be shown: {each}", markup=False)
            elapsed_s = (datetime.now(UTC) - record.created_at).total_seconds()
            live.update(live_tree(trace, texts, elapsed_s, wait.text if wait else ""), refresh=True)
            if trace.status not in LIVE_RUN:
                return
            time.sleep(DRAW_EVERY_S)


def _watch_lines(handle: RunHandle, record: RunRecord, after: str | None, preview: int, *, as_json: bool) -> None:
    is_streamed = record.is_live and not as_json and bool((record.settings or {}).get("stream"))
    if record.is_live:
        say(summary(record))
    for event in _follow(handle, after, is_streamed=is_streamed):
        if isinstance(event, Approval):
            print_status(question_lines(event))
        elif isinstance(event, str):
            say(event)
        elif as_json:
            show_json(event_shape(event), in_a_line=True)
        else:
            show_rows(event_line(event, preview))


def _follow(handle: RunHandle, after: str | None, *, is_streamed: bool) -> Iterator[EventRecord | Approval | str]:
    """Yield each event, each question once it is seen to be open, each wait that lasts, and each line that a step says."""
    news, texts = _Queue(AT_ONCE), dict[str, str]()
    _aside(handle.follow(after), news)
    if is_streamed:
        _aside(handle.stream(), news)
    readers, seen, last_key = 1 + is_streamed, set[str](), ""
    look_at = time.monotonic() + LOOK_EVERY_S
    while readers:
        with suppress(queue.Empty):
            each = news.get(timeout=max(0.0, look_at - time.monotonic()))
            if isinstance(each, Exception):
                raise each
            if each is None:
                readers -= 1
            elif isinstance(each, StreamEvent):
                yield from _lines(each, texts)
            else:
                yield each
        if time.monotonic() >= look_at:
            yield from _questions(handle, seen)
            wait = _wait_of(handle)
            key = wait.key if wait else ""
            if wait and key == last_key and key not in seen:  # it was there half a second ago, too
                seen.add(key)
                yield wait.text
            last_key = key
            look_at = time.monotonic() + LOOK_EVERY_S


def _lines(event: StreamEvent, texts: dict[str, str]) -> Iterator[str]:
    """Yield the lines that an event completes, each with its step's name."""
    place = place_of(event.address, event.step)
    *whole, rest = (texts.get(place, "") + event.text).split("\n")
    if event.kind in ("step_end", "withdrawn", "tool_call"):
        whole, rest = [*whole, *([rest] if rest else [])], ""
    texts[place] = rest
    if event.kind == "gap":
        texts.clear()  # what comes next does not continue these lines
    name = place.removeprefix(":").replace(":", "/")
    yield from (f"[{name}] {line}" for line in whole)
    if event.kind == "withdrawn":
        yield f"[{name}] withdrawn: its attempt failed, or its worker is gone"
    elif event.kind == "gap":
        yield "some of the text is lost"


def _aside(events: Iterable[News], news: _Queue) -> None:
    """Read events on another thread; None follows them, or the error that ended them."""

    def read() -> None:
        try:
            for event in events:
                news.put(event)
            news.put(None)
        except Exception as error:  # noqa: BLE001 - raised by the thread that prints the events
            news.put(error)

    threading.Thread(target=read, daemon=True).start()


def _wait_of(handle: RunHandle) -> Sentence | None:
    """Return what the run waits for; None while it works, or waits for a person: the question is shown."""
    with suppress(ServiceUnreachable):  # as in `_questions`
        sentence = handle.explain()
        return sentence if sentence.tone in ("wait", "stuck") else None
    return None


def _questions(handle: RunHandle, seen: set[str]) -> Iterator[Approval]:
    with suppress(ServiceUnreachable):  # Postgres was there before: it may only be restarting
        for approval in handle.approvals():
            if approval.key not in seen:
                seen.add(approval.key)
                yield approval
