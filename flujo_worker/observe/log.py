"""Configure structlog once; collect the lines of an attempt, to be written with its merge.

A line logged inside an attempt, or during the decision after it (`structlog.get_logger().info("looked_up", hits=3)`) goes to stdout and, as
an event of the run, into the attempt's outcome: so it is in Postgres if and only if the outcome is. Lines logged outside attempts go to the
system log. The text that a step prints, and the records that it logs with the standard library, are collected too, except those of threads that it has
started. Standard output and the root logger are intercepted on writes, so an attempt without output costs nothing. Anything that looks like a
secret is removed.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, NoReturn, TextIO, cast

import structlog

from flujo_client.config.models import Log, TemplateSettings
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.outcome import Event
from flujo_client.pipeline.compiled_text import Filling
from flujo_client.redact import redact, redact_tree
from flujo_client.serial import safe_serialize
from flujo_client.trace_context import trace_id
from flujo_client.tracebacks import traceback_of
from flujo_worker.observe.story import Story
from flujo_worker.runtime.units_met import meeting_units

PLAIN_LOGGER = __name__
"""The logger that has our lines where structlog is not configured: in an app of yours."""

_KNOWN = frozenset({"run", "scope", "step", "attempt", "worker", "tenant", "trace_id"})
"""The fields that `collecting_events` binds: an event's row has them already."""
_collected: ContextVar[Story | None] = ContextVar("flujo_story", default=None)
_group: ContextVar[list[Event] | None] = ContextVar("flujo_events_logged_together", default=None)
HTTP_CLIENTS = "anthropic", "botocore", "google_genai", "httpcore", "httpx", "httpx2", "openai", "urllib3"
"""The loggers of libraries that log a line for each request."""
_OURS = ("flujo_worker", "flujo_client")
_BENEATH_STEPS = "asyncio", "celery", "kombu", "psycopg", "redis", *HTTP_CLIENTS
"""Libraries below steps that log each of their calls: only their warnings are taken."""
_CHATTY = "celery.app.trace", "celery.beat", "celery.worker.strategy", *HTTP_CLIENTS
"""Loggers whose lines below WARNING are written only under the level DEBUG: the run's events show the same better."""
_listener: Callable[[Event], None] | None = None
"""Takes the events that are logged outside attempts."""


@contextmanager
def collecting_events(envelope: Envelope, **known: str) -> Iterator[Story]:
    """Bind run, scope, step, attempt, and what else is known, to every line logged inside, and collect the lines."""
    before = _collected.get()
    with structlog.contextvars.bound_contextvars(**fields_of(envelope, known)):
        _collected.set(story := Story())
        try:
            yield story
        finally:
            _collected.set(before)


def collect_events(envelope: Envelope, **known: str) -> Story:
    """Do what `collecting_events` does for all that is logged in this context from now on; return what has the lines."""
    structlog.contextvars.bind_contextvars(**fields_of(envelope, known))
    _collected.set(story := Story())
    return story


def fields_of(envelope: Envelope, known: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Return the fields of a line about an attempt."""
    ticket, place = envelope.ticket, {"scope": envelope.address, "step": envelope.step, "attempt": envelope.number}
    of_run = {"run": ticket.run, "trace_id": trace_id(ticket.run, ticket.trace_parent)}
    return {**of_run, **({"tenant": ticket.tenant} if ticket.tenant else {}), **place, **known}


@contextmanager
def bound(**known: Any) -> Iterator[None]:
    """Bind what is known, such as the agent and the model, to every line logged inside."""
    with structlog.contextvars.bound_contextvars(**{key: value for key, value in known.items() if value is not None}):
        yield


@contextmanager
def emitting_once() -> Iterator[None]:
    """Keep the events that are logged inside, unless all of it was answered in an earlier attempt, whose events are stored."""
    events: list[Event] = []
    outer, token = _group.get(), _group.set(events)
    try:
        with meeting_units() as met:
            yield
    finally:
        _group.reset(token)
        if met.are_stored and (story := _collected.get()) is not None:
            story.withdraw(events)
        elif outer is not None:
            outer.extend(events)


def collect_event(_: Any, level: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Store a line as an event: of the run if it is logged inside an attempt, else of the worker. The first processor of a chain."""
    story = _collected.get()
    keep = _listener if story is None else story.keep
    if keep is not None and not (story is not None and story.is_aside):
        context = structlog.contextvars.get_contextvars()
        data = {key: value for key, value in context.items() if key not in _KNOWN} | dict(line)
        name = redact(str(data.pop("event", "")))
        keep(event := Event(name, redact_tree(safe_serialize(data)), level, time.time()))
        if (group := _group.get()) is not None:
            group.append(event)
    return line


def set_outside_listener(listener: Callable[[Event], None] | None) -> None:
    """Send what this process logs outside attempts to one listener from now on, or to none."""
    global _listener  # noqa: PLW0603 - the process has one
    _listener = listener


def _pass_on(_: Any, level: str, line: MutableMapping[str, Any]) -> NoReturn:
    write_line(line.pop("event"), level, **line)
    raise structlog.DropEvent


_events = structlog.wrap_logger(
    None,
    processors=[collect_event, _pass_on],
    wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
    cache_logger_on_first_use=True,
)
"""Logs our own events: a chain of structlog's collects them, under any configuration of the application's, and passes them on to its log."""


def emit(name: str, /, level: str = "info", **data: Any) -> None:
    """Log one of our events."""
    getattr(_events, level)(name, **data)


def write_line(name: str, /, level: str, **data: Any) -> None:
    """Write a line to the log that is not an event."""
    aside = Story()
    aside.is_aside = True
    kept = _collected.set(aside)
    try:
        if structlog.is_configured():
            getattr(structlog.get_logger(), level)(name, **data)
        else:  # by default, structlog prints, and Celery logs what is printed as warnings
            _log_plainly(name, level, data)
    finally:
        _collected.reset(kept)


def _log_plainly(name: str, level: str, data: Mapping[str, Any]) -> None:
    logger, number = logging.getLogger(PLAIN_LOGGER), logging.getLevelNamesMapping()[level.upper()]
    if not logger.isEnabledFor(number):
        return
    hidden = redact_tree(dict(data))
    traceback = hidden.pop("exception", "")
    line = " ".join([name, *(f"{key}={value!r}" for key, value in hidden.items())])
    logger.log(number, "%s", f"{line}\n{traceback}" if traceback else line)


def hide_secrets(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Hide secrets in a line. A structlog processor: the last before a line is written, when tracebacks are texts already."""
    hidden: dict[str, Any] = redact_tree(dict(line))
    return hidden


class WatchedStdout:
    """Standard output whose `write` decides which text reaches the stream `beneath`."""

    def __init__(self, beneath: TextIO) -> None:
        self.beneath = beneath

    def write(self, text: str) -> int:
        raise NotImplementedError

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)


class LoggedStdout(WatchedStdout):
    """Standard output of a process whose log has it: what is printed, by imports for example, becomes lines of the log."""

    _unfinished = threading.local()

    def write(self, text: str) -> int:
        *lines, self._unfinished.text = f"{getattr(self._unfinished, 'text', '')}{text}".split("\n")
        for line in filter(None, lines):
            logging.getLogger("stdout").info("%s", line)
        return len(text)


def configure(log: Log) -> None:
    """Configure structlog and the standard library's logging for a worker process of our own.

    With `log.json`, nothing but the log's lines is written to standard output from now on.
    """
    stdout = sys.stdout.beneath if isinstance(sys.stdout, LoggedStdout) else sys.stdout
    if log.as_json:
        sys.stdout = cast("TextIO", LoggedStdout(stdout))
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last = structlog.processors.JSONRenderer() if log.as_json else structlog.dev.ConsoleRenderer(colors=False)
    written: list[Any] = [structlog.processors.format_exc_info, hide_secrets, last]
    level = logging.getLevelNamesMapping()[log.level]
    structlog.configure(
        processors=[collect_event, *shared, *written],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stdout),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *written],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING) if level > logging.DEBUG else level)
    logging.captureWarnings(capture=True)


def filling_of(section: TemplateSettings, **place: str) -> Filling:
    """Return how templates of blueprints are filled in, by the project's settings; `place` appears in the events."""

    def on_missing(name: str) -> None:
        emit("template.missing", "warning", name=name, **place)

    def on_resolved(names: list[str]) -> None:
        emit("template.resolved", names=names, **place)

    return Filling(section.undefined_variables, on_missing, on_resolved if section.log_resolution else None)


class StepStdout(WatchedStdout):
    """Standard output: an attempt's output becomes separate lines, everything else passes through."""

    def write(self, text: str) -> int:
        story = _collected.get()
        if story is None or story.is_aside:
            self.beneath.write(text)
            return len(text)
        for line in story.print(text):
            write_line("step.printed", "info", text=line)
        return len(text)


class StepLogs(logging.Handler):
    """Takes the records that are logged inside an attempt; their lines in the worker's log are written by other handlers."""

    def emit(self, record: logging.LogRecord) -> None:
        story = _collected.get()
        if story is None or story.is_aside or record.levelno < _least(record.name):
            return
        try:
            data = {"logger": record.name, "message": record.getMessage()}
            error = record.exc_info[1] if record.exc_info else None
            if error is not None:
                data["traceback"] = traceback_of(error) or f"{type(error).__name__}: {error}"
            story.log(record.levelname.lower(), data)
        except Exception:  # noqa: BLE001 - a record that cannot be written breaks no step
            self.handleError(record)


def _least(name: str) -> int:
    """Return the level from which a logger's records are taken. DEBUG only where it is set on the logger, not on the root."""
    package = name.partition(".")[0]
    if package in _OURS:
        return logging.CRITICAL + 1
    if package in _BENEATH_STEPS:
        return logging.WARNING
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None and logger.parent is not None:
        if logger.level:
            return logger.level
        logger = logger.parent
    return logging.INFO


_handler = StepLogs()


def capture_step_output() -> None:
    """Take what steps print and log from now on."""
    if not isinstance(sys.stdout, StepStdout):
        sys.stdout = cast("TextIO", StepStdout(sys.stdout))
    logging.getLogger().addHandler(_handler)


def release_step_output() -> None:
    """Leave standard output and logging as they were."""
    out: Any = sys.stdout
    if isinstance(out, StepStdout):
        sys.stdout = out.beneath
    logging.getLogger().removeHandler(_handler)
