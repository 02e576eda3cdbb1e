"""Find settings of a Celery app under which pipelines run badly, or not at all. Pure: `app_findings` turns facts into findings.

Each rule was tried with real workers. Settings that Flujo's tasks replace by their own, such as `task_acks_late`, need none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

Level = Literal["ok", "note", "warning", "error"]
LEVELS: Final[tuple[Level, ...]] = ("ok", "note", "warning", "error")
"""From the best to the worst. An error: something does not work. A warning: it will not last. A note: it is good to know."""
TRANSPORT: Final = "broker_transport_options"
_NOTICED: Final = "broker_transport_options = {'socket_timeout': 10, 'health_check_interval': 5, …}"
_LISTS: Final = "its workers wait for runs with a priority at lists to which clients do not push them"
_CHILD: Final = "a new prefork child takes about a second to start"
_RULES: Final[tuple[tuple[str, bool | int, Level, str, str], ...]] = (
    ("task_always_eager", True, "error", "workers refuse to start: nothing would survive a crash", "task_always_eager = False, except in tests"),
    (f"{TRANSPORT}.sep", True, "error", _LISTS, "remove 'sep' from broker_transport_options"),
    (f"{TRANSPORT}.priority_steps", True, "error", _LISTS, "remove 'priority_steps' from broker_transport_options"),
    (f"{TRANSPORT}.socket_timeout", False, "warning", "workers wait for ever on a connection to Redis whose other end is gone", _NOTICED),
    (f"{TRANSPORT}.health_check_interval", False, "note", "workers notice only after a minute that the other end of a connection to Redis is gone", _NOTICED),
    ("worker_cancel_long_running_tasks_on_connection_loss", True, "warning", "losing a connection to Redis kills steps in a prefork pool: they count as lost, and begin again", "worker_cancel_long_running_tasks_on_connection_loss = False"),
    ("worker_max_memory_per_child", 100_000, "warning", f"each attempt ends its prefork child, and {_CHILD}", "worker_max_memory_per_child = 400_000"),
    ("worker_max_tasks_per_child", True, "note", f"each attempt is a task, and {_CHILD}", "worker_max_tasks_per_child = 1000"),
    (f"{TRANSPORT}.visibility_timeout", 3600, "note", "messages of longer steps are delivered again; the claim refuses these", "broker_transport_options = {'visibility_timeout': 3600, …}"),
    ("task_time_limit", True, "note", "it does not limit steps", "StepConfig(timeout_s=…)"),
    ("task_soft_time_limit", True, "note", "it does not limit steps", "StepConfig(timeout_s=…)"),
)  # fmt: skip
"""Settings, each with the values that are reported: True for any that is set, False for none, a number for those below it."""
_SETTING: Final = re.compile(r"\b(?:broker|task|worker)_[a-z_]+\b")
READ: Final = tuple(name for name, *_ in _RULES)


class Diagnosis(NamedTuple):
    """A rule's finding about a thing, and the line to change."""

    level: Level
    thing: str
    what: str
    change: str | None = None


def worst(findings: Sequence[Diagnosis]) -> Level:
    return max((each.level for each in findings), key=LEVELS.index, default="ok")


@dataclass(frozen=True, slots=True)
class AppFacts:
    """Facts about a Celery app, without addresses and secrets.

    Attributes:
        reference: the app, as `-A` names it.
        values: its settings `READ`; an option of the transport is `broker_transport_options.NAME`.
        is_attached: whether it carries pipelines.
        broker_error: kombu's error when it connected to the broker; None if it succeeded.
        is_on_redis: whether its broker is Redis, of whose transport some rules are.
        changes_driver: whether its Django uses psycopg 3 although psycopg2 is installed.
        namespace: the prefix of its settings where they are written, such as `CELERY`; None for names in small letters.
    """

    reference: str
    values: Mapping[str, Any] = field(default_factory=dict)
    is_attached: bool = True
    broker_error: str | None = None
    is_on_redis: bool = True
    changes_driver: bool = False
    namespace: str | None = None


def app_findings(app: AppFacts) -> Iterator[Diagnosis]:
    """Yield the findings about an app: one for each line to change."""
    found: dict[str, Diagnosis] = {}
    if app.is_attached:
        yield Diagnosis("ok", "app", app.reference)
    else:
        what = f"no worker of {app.reference} runs pipelines"
        yield Diagnosis("warning", "app", what, "FlujoWorker(app), in the module of the app")
    if app.broker_error is not None:
        is_mismatch = "redis-py" in app.broker_error  # kombu names the version that it needs
        pair = "pip install 'redis>=6.4', or 'kombu<5.7' with Celery 5.3 or 5.4"
        change = pair if is_mismatch else "check the app's broker"
        broker = "Redis" if app.is_on_redis else "RabbitMQ"
        yield Diagnosis("error", "app", f"its workers cannot reach {broker}: {app.broker_error}", change)
    for name, reported, level, what, change in _RULES:
        if name.startswith(TRANSPORT) and not app.is_on_redis:
            continue
        value = app.values.get(name)
        if (bool(value) is reported) if isinstance(reported, bool) else (value is not None and value < reported):
            finding = f"{name} is {value!r}: {what}", change
            found.setdefault(change, Diagnosis(level, "app", *(_written(text, app.namespace) for text in finding)))
    yield from found.values()
    if app.changes_driver:
        what = "since Flujo installed psycopg 3, Django uses it, also where code expects cursors of psycopg2"
        yield Diagnosis("note", "django", what, "replace psycopg2.extras, such as execute_values, on Django's cursors")


def _written(text: str, namespace: str | None) -> str:
    """Return a text with the names of settings as the app's project writes them."""
    return _SETTING.sub(lambda name: f"{namespace}_{name[0].upper()}", text) if namespace else text
