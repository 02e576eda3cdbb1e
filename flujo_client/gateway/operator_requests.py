"""Queries for operators: the health check, `flujo doctor`, `flujo status`, `flujo lens stats`, and the settings of model guards. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from math import ceil
from typing import Any, Final

from flujo_client.config.models import Health
from flujo_client.contract.deployment import BrokerFacts, DatabaseFacts, LockHolder
from flujo_client.contract.limits import WAKE_S, Guard, GuardRow, waits_for
from flujo_client.contract.run_filter import EvalRecord, FailingStep, RunFilter, RunStats
from flujo_client.contract.spend import Counted, DayOfModel, SpendRecord
from flujo_client.gateway.effects import AskBroker, Operation
from flujo_client.gateway.requests import Request, Row, text_or_none
from flujo_client.health.facts import ArosFacts, HealthQuery, MachineFacts, read_aros, read_machine
from flujo_client.health.report import HealthReport
from flujo_client.plan.plan import OnChange
from flujo_client.serial import stored_safely

HEALTH: Final = "flujo_client.health"
"""The package of the statements that workers execute too."""
MOST = 20
MOST_FAILING = 10
MOST_RUNS = 1000
"""The number of newest runs that are searched for judgements if no run is named."""
LONG_S = 2.0
"""Seconds after which a transaction that holds locks is listed: Flujo's own are shorter."""
_BOUNDS: Final[Request[None]] = Request("bounds", HealthQuery.bounds(), lambda _: None, HEALTH)
_LIKE = str.maketrans({"\\": "\\\\", "%": "\\%", "_": "\\_", "*": "%", "?": "_"})


def aros(question: HealthQuery) -> Request[ArosFacts]:
    """Count the interventions of AROS in the examined runs."""
    return Request("aros", question.aros_parameters(), lambda rows: read_aros(rows[0]), HEALTH, _BOUNDS)


def machine(question: HealthQuery, health: Health, on_change: OnChange = "carry_on") -> Request[MachineFacts]:
    """Read the state of workers, queues and limits in Postgres; `on_change` is the policy of plans that name none."""
    parameters = question.machine_parameters(health, on_change)
    return Request("machine", parameters, lambda rows: read_machine(rows[0]), HEALTH, _BOUNDS)


def run_spend(run_id: str) -> Request[list[SpendRecord]]:
    """Read what a run, with its child runs, has paid, holds of its budgets, and may have paid."""
    return Request("run_spend", {"run": run_id}, lambda rows: [SpendRecord(**row) for row in rows])


def spend_by_day(first: date, last: date) -> Request[list[DayOfModel]]:
    """Read what was spent on these days, by model."""

    def read(rows: list[Row]) -> list[DayOfModel]:
        return [DayOfModel(row.pop("day"), row.pop("model"), Counted(**row)) for row in rows]

    return Request("spend_by_day", {"first": first.isoformat(), "last": last.isoformat()}, read)


def last_report() -> Request[HealthReport | None]:
    return Request("last_report", {}, lambda rows: HealthReport.model_validate(rows[0]["report"]) if rows else None)


def database_facts() -> Request[DatabaseFacts]:
    return Request("deployment", {}, lambda rows: _database(rows[0]))


def broker_facts() -> Operation[BrokerFacts]:
    """Ask Redis for its facts; raises ServiceUnreachable."""
    facts: BrokerFacts = yield AskBroker(lambda post: post.broker.describe())
    return facts


def _database(row: Row) -> DatabaseFacts:
    lists: dict[str, Any] = {name: tuple(row[name]) for name in ("not_granted", "models")}
    waiting, version = tuple(map(tuple, row["waiting"])), row["version"].partition(" ")[0]
    return DatabaseFacts(**{**row, **lists, "waiting": waiting, "version": version})


@dataclass(frozen=True, slots=True)
class LimitRecord:
    """A concurrency limit: how many attempts may run at once, how many do, and how many wait."""

    name: str
    at_once: int
    in_use: int
    waiting: int


@dataclass(frozen=True, slots=True)
class GateRecord:
    """A limit or window of runs: how many may be under way (None: any number, runs only wait), how many are, and how many wait."""

    name: str
    most: int | None
    taken: int
    waiting: int


@dataclass(frozen=True, slots=True)
class BreakerRecord:
    """A model whose circuit breaker is not closed: `opened` or `half_open`, for so many seconds."""

    model: str
    state: str
    since_s: float


def limits_in_use() -> Request[list[LimitRecord]]:
    """List the concurrency limits at which attempts run or wait."""
    return Request("limits_in_use", {"limit": MOST}, lambda rows: [LimitRecord(**row) for row in rows])


def gates_in_use() -> Request[list[GateRecord]]:
    """List the limits and windows at which runs wait for their admission."""
    return Request("gates_in_use", {"limit": MOST}, lambda rows: [GateRecord(**row) for row in rows])


def open_breakers() -> Request[list[BreakerRecord]]:
    """List the circuit breakers that were last seen open or half open."""
    return Request("open_breakers", {"limit": MOST}, lambda rows: [BreakerRecord(**row) for row in rows], HEALTH)


def lock_holders(older_s: float = LONG_S) -> Request[list[LockHolder]]:
    """List the sessions whose transactions hold locks on Flujo's tables for longer than so many seconds, the oldest first."""
    return Request("lock_holders", {"lock": None, "older_s": older_s}, lambda rows: [LockHolder(**row) for row in rows])


@dataclass(frozen=True, slots=True)
class WaitingForModel:
    """Attempts that wait until their model may be called: for its breaker or its rate, how many, and in how many seconds the next one asks."""

    guard: Guard
    model: str
    waiting: int
    next_s: float


def waiting_for_models() -> Request[list[WaitingForModel]]:
    """List the models that attempts wait for, those with most of them first."""
    return Request("waiting_for_models", {"limit": MOST}, lambda rows: [WaitingForModel(**row) for row in rows])


def guard_rows() -> Request[list[GuardRow]]:
    return Request("guard_rows", {}, lambda rows: [GuardRow.of(row) for row in rows])


def edit_guard(
    guard: Guard,
    model: str,
    edits: Mapping[str, Any] | None = None,
    *,
    resets: bool = False,
    clears: bool = False,
    actor: str | None = None,
) -> Request[int]:
    """Change operators' settings for the models of a name or pattern; the answer is the number of waiting attempts that will ask again.

    Settings that `edits` does not name stay, or with `resets` go back to those of the settings file. With `clears`, workers close the
    breaker, or end the slow-down.
    """
    parameters = {
        "guard": guard,
        "model": model,
        "edits": None if edits is None else stored_safely(dict(edits)),
        "resets": resets,
        "clears": clears,
        "actor": text_or_none(actor),
        "wake_s": WAKE_S,
        "waits_for": waits_for(guard, model.partition("[")[0] + "*" if "[" in model else model).translate(_LIKE),
    }
    return Request("edit_guard", parameters, lambda rows: int(rows[0]["woken"]))


def stats(filters: RunFilter, *, timeout_s: float) -> Request[RunStats]:
    """Count the runs that match, among which `since` bounds the window; Postgres gives up after `timeout_s` seconds."""
    parameters: dict[str, Any] = {**filters.parameters(), "limit": MOST_FAILING}
    return Request("stats", parameters, lambda rows: _stats(rows[0]), bounds=_within(timeout_s))


def judgements(*, run: str | None, limit: int, timeout_s: float) -> Request[list[EvalRecord]]:
    """Read the judgements of outputs, newest first: of a run and its child runs, or of the newest runs."""
    parameters: dict[str, Any] = {"run": run, "limit": limit, "runs": MOST_RUNS}
    return Request("evals", parameters, lambda rows: [EvalRecord(**row) for row in rows], bounds=_within(timeout_s))


def _within(timeout_s: float) -> Request[None]:
    return Request("stats_bounds", {"timeout_ms": str(ceil(timeout_s * 1000))}, lambda _: None)


def _stats(row: Row) -> RunStats:
    return RunStats(**{**row, "failing": tuple(FailingStep(**each) for each in row["failing"])})
