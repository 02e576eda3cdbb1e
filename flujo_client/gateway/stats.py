"""The queries of `flujo lens stats`."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from flujo_client.contract.stats import EvalRecord, FailingStep, RunStats
from flujo_client.gateway.requests import Request, Row

if TYPE_CHECKING:
    from flujo_client.contract.run_filter import RunFilter

MOST_FAILING = 10
MOST_RUNS = 1000
"""The number of newest runs that are searched for judgements if no run is named."""


def stats(filters: RunFilter, *, timeout_s: float) -> Request[RunStats]:
    """Count the runs that match, among which `since` bounds the window; Postgres gives up after `timeout_s` seconds."""
    parameters: dict[str, Any] = {**filters.parameters(), "limit": MOST_FAILING}
    bounds = Request("stats_bounds", {"timeout_ms": str(ceil(timeout_s * 1000))}, lambda _: None)
    return Request("stats", parameters, lambda rows: _stats(rows[0]), bounds=bounds)


def judgements(*, run: str | None, limit: int, timeout_s: float) -> Request[list[EvalRecord]]:
    """Read the judgements of outputs, newest first: of a run and its child runs, or of the newest runs."""
    parameters: dict[str, Any] = {"run": run, "limit": limit, "runs": MOST_RUNS}
    bounds = Request("stats_bounds", {"timeout_ms": str(ceil(timeout_s * 1000))}, lambda _: None)
    return Request("evals", parameters, lambda rows: [EvalRecord(**row) for row in rows], bounds=bounds)


def _stats(row: Row) -> RunStats:
    return RunStats(**{**row, "failing": tuple(FailingStep(**each) for each in row["failing"])})
