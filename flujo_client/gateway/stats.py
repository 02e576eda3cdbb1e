"""What `flujo lens stats` asks of Postgres."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from flujo_client.contract.stats import FailingStep, RunStats
from flujo_client.gateway.requests import Request

if TYPE_CHECKING:
    from flujo_client.gateway.requests import Row

MOST_FAILING = 10


def stats(*, hours: float, pipeline: str | None, timeout_s: float) -> Request[RunStats]:
    """Count the runs that were enqueued in the last hours; Postgres gives up after `timeout_s` seconds."""
    parameters: dict[str, Any] = {"hours": hours, "pipeline": pipeline, "limit": MOST_FAILING}
    bounds = Request("stats_bounds", {"timeout_ms": str(ceil(timeout_s * 1000))}, lambda _: None)
    return Request("stats", parameters, lambda rows: _stats(rows[0]), bounds=bounds)


def _stats(row: Row) -> RunStats:
    return RunStats(**{**row, "failing": tuple(FailingStep(**each) for each in row["failing"])})
