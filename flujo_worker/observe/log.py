"""Configure structlog once; collect the lines of an attempt, to be written with its merge.

A line logged inside an attempt, or during the decision after it (`structlog.get_logger().info("looked_up", hits=3)`) goes to stdout and, as
an event of the run, into the attempt's outcome: so it is in Postgres if and only if the outcome is. Lines logged outside attempts go to the
system log. Anything that looks like a secret is removed.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import structlog

from flujo_client.contract.envelope import Envelope
from flujo_client.contract.outcome import Event
from flujo_client.pipeline.compiled_text import Filling
from flujo_client.redact import redact, redact_tree
from flujo_client.serial import safe_serialize
from flujo_worker.observe.story import Story

if TYPE_CHECKING:
    from flujo_client.config.models import Log, TemplateSettings


_KNOWN = frozenset({"run", "scope", "step", "attempt", "worker", "event", "level", "timestamp"})
"""Fields that an event's row has already, unless we add them."""
_collected: ContextVar[Story | None] = ContextVar("flujo_story", default=None)
_outside: list[Callable[[Event], None]] = []
"""The listeners to what is logged outside attempts: none or one."""


@contextmanager
def collecting_events(envelope: Envelope, **known: str) -> Iterator[Story]:
    """Bind run, scope, step, attempt, and what else is known, to every line logged inside, and collect the lines."""
    events = Story()
    token = _collected.set(events)
    bound = structlog.contextvars.bind_contextvars(
        run=envelope.ticket.run,
        scope=envelope.address,
        step=envelope.step,
        attempt=envelope.number,
        **known,
    )
    try:
        yield events
    finally:
        structlog.contextvars.reset_contextvars(**bound)
        _collected.reset(token)


@contextmanager
def bound(**known: Any) -> Iterator[None]:
    """Bind what is known, such as the agent and the model, to every line logged inside."""
    with structlog.contextvars.bound_contextvars(**{key: value for key, value in known.items() if value is not None}):
        yield


def collect_event(_: Any, level: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Store the line as an event, of the run if it is logged inside an attempt. A structlog processor."""
    _collect(level, line, _KNOWN)
    return line


def _collect(level: str, line: Mapping[str, Any], hidden: frozenset[str]) -> None:
    events = _collected.get()
    if events is None:
        for listener_of in _outside:
            listener_of(_event(level, line, hidden))
        return
    events.keep(_event(level, line, hidden))


def set_outside_listener(listener: Callable[[Event], None] | None) -> None:
    """Send what this process logs outside attempts to one listener from now on, or to none."""
    _outside[:] = [] if listener is None else [listener]


def _event(level: str, line: Mapping[str, Any], hidden: frozenset[str]) -> Event:
    data = {key: value for key, value in line.items() if key not in hidden}
    return Event(redact(str(line.get("event", ""))), redact_tree(safe_serialize(data)), level, time.time())


def emit(name: str, /, level: str = "info", **data: Any) -> None:
    """Log one of our lines inside an attempt: it is recorded for the run under any processors of the application's structlog."""
    line = structlog.contextvars.merge_contextvars(None, level, {"event": name, **data})
    _collect(level, line, _KNOWN - data.keys())
    write_line(name, level, **data)


def write_line(name: str, /, level: str, **data: Any) -> None:
    """Write a line to the log that is not an event."""
    aside = Story()
    aside.is_aside = True
    kept = _collected.set(aside)
    try:
        getattr(structlog.get_logger(), level)(name, **data)
    finally:
        _collected.reset(kept)


def print_line(text: str) -> bool:
    """Take what is printed inside an attempt; False: this is outside of one, or is a line of the log."""
    story = _collected.get()
    if story is None or story.is_aside:
        return False
    for line in story.print(text):
        write_line("step.printed", "info", text=line)
    return True


def collect_logged(level: str, data: dict[str, Any]) -> None:
    """Collect what a step has logged with the standard library, if this is inside an attempt."""
    story = _collected.get()
    if story is not None and not story.is_aside:
        story.log(level, data)


def hide_secrets(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Hide secrets in a line. A structlog processor: the last before a line is written, when tracebacks are texts already."""
    hidden: dict[str, Any] = redact_tree(dict(line))
    return hidden


def configure(log: Log) -> None:
    """Configure structlog and the standard library's logging for a worker process of our own."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last = structlog.processors.JSONRenderer() if log.as_json else structlog.dev.ConsoleRenderer(colors=False)
    level = logging.getLevelNamesMapping()[log.level]
    structlog.configure(
        processors=[*shared, collect_event, structlog.processors.format_exc_info, hide_secrets, last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stdout),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                hide_secrets,
                last,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for chatty in (
        "celery.worker.strategy",
        "celery.app.trace",
    ):  # a line for each message; the run's events show it better
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING) if level > logging.DEBUG else level)


def filling_of(section: TemplateSettings, **place: str) -> Filling:
    """Return how templates of blueprints are filled in, by the project's settings.

    Args:
        section: says what becomes of names that are missing, and whether each template that was resolved is logged.
        place: appears in the event.
    """

    def on_missing(name: str) -> None:
        emit("template.missing", "warning", name=name, **place)

    def on_resolved(names: list[str]) -> None:
        emit("template.resolved", names=names, **place)

    return Filling(section.undefined_variables, on_missing, on_resolved if section.log_resolution else None)
