"""The keyword arguments of the client's methods, which the async client takes as `**options`.

Their meaning is documented where the sync client names them; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from pydantic import BaseModel

    from flujo_client.contract.admission import RunLimit, Singleton, Throttle
    from flujo_client.contract.limits import UsageLimits


class _CommonOptions(TypedDict, total=False):
    context: Mapping[str, Any] | BaseModel | None
    queue: str | None
    priority: int | None
    tenant: str
    deadline_s: float | None
    metadata: Mapping[str, Any] | None
    trace_parent: str | None
    limits: UsageLimits | None
    run_limits: Sequence[RunLimit]
    throttle: Throttle | None


class RunOptions(_CommonOptions, total=False):
    """The options of one run, as in `RunRequest`."""

    idempotency_key: str | None
    singleton_key: str | None
    singleton: Singleton
    debounce_s: float | None
    debounce_key: str


class EnqueueOptions(RunOptions, total=False):
    """Options of `FlujoClient.enqueue`."""

    run_id: str | None
    connection: Any


class BulkOptions(_CommonOptions, total=False):
    """Options of `FlujoClient.enqueue_many`: what all its runs have in common, and where they are recorded."""

    connection: Any


class RunFilters(TypedDict, total=False):
    """Filters of `FlujoClient.list_runs`."""

    status: str | Collection[str] | None
    pipeline: str | None
    tenant: str | None
    metadata: Mapping[str, Any] | None
    since: datetime | timedelta | None
    error: str | None
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
    address: str | None
    actor: str | None
    note: str | None


class RetryOptions(TypedDict, total=False):
    """Options of `RunHandle.retry`."""

    idempotency_key: str | None
    queue: str | None
    priority: int | None
    deadline_s: float | None
    metadata: Mapping[str, Any] | None
    limits: UsageLimits | None
