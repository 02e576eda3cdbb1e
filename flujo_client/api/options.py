"""The keyword arguments of the client's methods, which both clients take as `**options`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict

from pydantic import BaseModel

from flujo_client.contract.admission import RunLimit, Singleton, Throttle
from flujo_client.contract.limits import UsageLimits
from flujo_client.contract.suggestions import did_you_mean


class _CommonOptions(TypedDict, total=False):
    context: Mapping[str, Any] | BaseModel | None
    """The run's context: a mapping, or an instance of the pipeline's context model."""
    queue: str | None
    """The Celery queue of steps that name none."""
    priority: int | None
    """0 (served first) to 9."""
    tenant: str
    """The owner of the run; idempotency keys are unique within a tenant."""
    deadline_s: float | None
    """Seconds after which the run expires."""
    metadata: Mapping[str, Any] | None
    """Stored with the run, for `list_runs`."""
    trace_parent: str | None
    """A W3C trace context, stored with the run."""
    limits: UsageLimits | None
    """What the run and its child runs may spend; the project's `[budgets]` apply too, the smaller of each."""
    run_limits: Sequence[RunLimit]
    """How many runs with the same key may be under way at once. Further runs wait, and are listed as queued."""
    throttle: Throttle | None
    """How many runs may begin in a period."""
    stream: bool | None
    """Stream all that the run's steps do and say while they run, or nothing; when None, what the pipeline and its steps ask for. Needs Redis."""
    delay_s: float | None
    """Seconds that the run waits before it begins, from 0 to ten years."""
    at: datetime | str | None
    """When the run begins: a datetime with a time zone, or one as an ISO 8601 text; at once if it has passed."""


class RunOptions(_CommonOptions, total=False):
    """The options of one run, as in `RunRequest`."""

    idempotency_key: str | None
    """The same key again returns the same run, and is rejected for different work."""
    singleton_key: str | None
    """At most one run of this pipeline and tenant with this key is under way; a text, or a template over `input` and `tenant`."""
    singleton: Singleton
    """While one is under way, return it, whatever its input (`return`), begin after it (`queue`), or cancel it and begin when it has ended (`replace`)."""
    debounce_s: float | None
    """Seconds that the run waits before it begins. If another with the same `debounce_key` is enqueued meanwhile, this one is cancelled."""
    debounce_key: str
    """A text or a template, as `singleton_key`; all runs of the pipeline and the tenant share the empty one."""


class EnqueueOptions(RunOptions, total=False):
    """Options of `FlujoClient.enqueue`."""

    run_id: str | None
    """An id that you choose: letters, digits, `_`, `-` and `.`; the same id again returns the same run, and is rejected for different work."""
    connection: Any
    """Your own transaction: a connection of psycopg or psycopg2, a SQLAlchemy `Session` or `Connection` on them, or Django's `connection`.

    The run exists if and only if you commit. A sweep publishes it within a second, or `RunHandle.publish()` at once after your commit. The async
    client takes a psycopg `AsyncConnection`, an asyncpg `Connection`, or a SQLAlchemy `AsyncSession` or `AsyncConnection` on them.
    """


class BulkOptions(_CommonOptions, total=False):
    """Options of `FlujoClient.enqueue_many`: what all its runs have in common, and where they are recorded."""

    connection: Any
    """As for `enqueue`."""


class RunFilters(TypedDict, total=False):
    """Filters of `FlujoClient.list_runs`, described in `RunFilter`."""

    status: str | Collection[str] | None
    pipeline: str | None
    tenant: str | None
    metadata: Mapping[str, Any] | None
    since: datetime | timedelta | None
    error: str | None
    text: str | None
    step: str | None
    retried: bool
    prefix: str | None
    end: str | None
    part: str | None
    parent: str | None
    background: bool | None


class DeletedRunFilters(TypedDict, total=False):
    """Filters of `FlujoClient.list_deleted_runs`."""

    status: str | Collection[str] | None
    pipeline: str | None
    tenant: str | None
    parent: str | None
    limit: int
    offset: int


class ApprovalFilters(TypedDict, total=False):
    """Filters of `FlujoClient.approvals`."""

    pipeline: str | None
    tenant: str | None
    limit: int
    offset: int


class AnswerOptions(TypedDict, total=False):
    """Options of `RunHandle.resume`."""

    step: str | None
    """The name of the step whose question to answer, if several are open."""
    address: str | None
    """The scope of the step whose question to answer, if several are open."""
    actor: str | None
    """The name of the person who answers; stored with the answer."""
    note: str | None
    """The reason; stored with the answer."""


class SendOptions(TypedDict, total=False):
    """Options of `RunHandle.send`."""

    id: str | None
    """The event's id: the same id again changes nothing, and is rejected with another value. Each event has its own when None."""
    actor: str | None
    """The name of the person or the system that sends it; stored with the event."""
    connection: Any
    """Your own transaction, as for `enqueue`: the event is sent if and only if you commit."""


class RetryOptions(TypedDict, total=False):
    """Options of `RunHandle.retry` and `fork`; all but the key default to those of the run."""

    idempotency_key: str | None
    """The same key again returns the same new run."""
    queue: str | None
    """The queue of steps that name none."""
    priority: int | None
    """0 (served first) to 9."""
    deadline_s: float | None
    """Seconds after which the new run expires."""
    metadata: Mapping[str, Any] | None
    """Stored with the new run."""
    limits: UsageLimits | None
    """What the new run may spend."""
    actor: str | None
    """The name of the person who begins the run again; stored with the old run."""


def refuse_unknown(options: Mapping[str, Any], kind: Any, method: str) -> None:
    """Raise TypeError, as Python does for an unknown argument, for an option that the TypedDict `kind` lacks; it names the nearest one."""
    for name in options.keys() - kind.__optional_keys__:
        near = did_you_mean(name, kind.__optional_keys__)
        raise TypeError(f"{method}() got an unexpected keyword argument {name!r}{(near and f': {near}') or ''}")
