"""Read the metrics of the fleet, with the statements of `flujo status` and the health check wherever they have the answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, get_args

from flujo_client.api import model_guards
from flujo_client.config.manager import Settings
from flujo_client.contract.records import BudgetRecord, WorkerRecord
from flujo_client.contract.run_filter import RunFilter
from flujo_client.errors import FlujoError
from flujo_client.gateway import operator_requests, requests
from flujo_client.gateway.effects import AskBroker, Operation, query
from flujo_client.gateway.requests import Request, Row
from flujo_client.health.facts import HealthQuery, MachineFacts
from flujo_client.metrics.definitions import PROBLEMS, STATES, Sample
from flujo_client.transport.dead_letters import Reason, Refused

HOME: Final = "flujo_client.metrics"
MOST_TENANTS: Final = 200
MOST_APPROVALS: Final = 200
NEAR: Final = 0.8
NOW: Final = HealthQuery(limit=1)
"""Of the health check, only what is wrong now: not how the runs of a window ended, which takes longer."""


def fleet_samples(settings: Settings) -> Operation[list[Sample]]:
    """Read all metrics; a Postgres that does not answer is a value too."""
    try:
        samples = yield from _from_postgres(settings)
    except FlujoError:
        return [Sample("flujo_up", {}, 0.0)]
    try:
        refused: Refused = yield AskBroker(lambda post: post.broker.refused())
    except FlujoError:
        return [*samples, Sample("flujo_broker_up", {}, 0.0)]
    counts = dict.fromkeys(get_args(Reason), 0) | dict(refused.reasons)
    letters = [Sample("flujo_dead_letters_total", {"reason": why}, count) for why, count in counts.items()]
    return [*samples, Sample("flujo_broker_up", {}, 1.0), *letters]


def _from_postgres(settings: Settings) -> Operation[list[Sample]]:
    totals = yield from query(_rows("totals"))
    waiting = yield from query(_rows("waiting"))
    database = {row["name"]: row["value"] for row in (yield from query(_rows("database")))}
    samples = [Sample("flujo_up", {}, 1.0), *(Sample(**row) for row in totals), *_of_queues(waiting)]
    samples += _of_workers((yield from query(requests.workers())), waiting)
    samples += _of_machine((yield from query(operator_requests.machine(NOW, settings.health, settings.runs.on_change))))
    limits, gates = operator_requests.limits_in_use(), operator_requests.gates_in_use()
    for limit in (yield from query(limits)):
        samples += _of_limit("flujo_limit", limit.name, limit.at_once, limit.in_use, limit.waiting)
    for gate in (yield from query(gates)):
        samples += _of_limit("flujo_run_limit", gate.name, gate.most, gate.taken, gate.waiting)
    samples += _of_guards((yield from model_guards.breakers()), (yield from model_guards.rates()))
    budgets = yield from query(requests.budgets_near_limit(0.0, MOST_TENANTS))
    samples += _of_budgets(budgets, by_tenant=settings.metrics.tenants)
    for pipeline, step, count in (yield from query(requests.count_approvals(RunFilter()))).groups[:MOST_APPROVALS]:
        samples.append(Sample("flujo_approvals_open", {"pipeline": pipeline, "step": step}, count))
    samples.append(Sample("flujo_oldest_transaction_seconds", {}, database.pop("", 0.0)))
    return samples + [Sample("flujo_table_bytes", {"table": name}, size) for name, size in database.items()]


def _rows(name: str) -> Request[list[Row]]:
    return Request(name, {}, lambda rows: rows, HOME)


def _of_queues(waiting: Iterable[Row]) -> Iterator[Sample]:
    unsent = asked = 0.0
    for row in waiting:
        labels = {"queue_name": row["queue"], "reason": row["reason"]}
        yield Sample("flujo_queue_length", labels, row["count"])
        yield Sample("flujo_queue_age_seconds", labels, row["oldest_s"])
        unsent = max(unsent, row["oldest_s"]) if row["reason"] == "unsent" else unsent
        asked = max(asked, row["oldest_s"]) if row["reason"] == "approval" else asked
    yield Sample("flujo_outbox_lag_seconds", {}, unsent)
    yield Sample("flujo_approval_age_seconds", {}, asked)


def _of_workers(workers: Iterable[WorkerRecord], waiting: Iterable[Row]) -> Iterator[Sample]:
    live = [each for each in workers if each.is_live and each.slots]
    states = Counter((each.host, _state(each)) for each in live)
    for (host, state), count in states.items():
        yield Sample("flujo_workers", {"hostname": host, "state": state}, count)
    slots = Counter[str]()
    for each in live:
        if _state(each) in ("working", "slowed"):
            slots.update(dict.fromkeys(each.queues or (), each.slots))
    used = {row["queue"]: row["count"] for row in waiting if row["reason"] == "running"}
    for queue in sorted({*slots, *used}):
        yield Sample("flujo_slots", {"queue_name": queue}, slots[queue])
        yield Sample("flujo_slots_used", {"queue_name": queue}, used.get(queue, 0))


def _state(worker: WorkerRecord) -> str:
    if worker.is_stopping:
        return "stopping"
    return "lacks_key" if worker.lacks else "slowed" if worker.slowed else "working"


def _of_machine(machine: MachineFacts) -> Iterator[Sample]:
    for problem in PROBLEMS:
        fact = machine.found.get(problem)
        yield Sample("flujo_problems", {"problem": problem}, fact.count if fact else 0)
        yield Sample("flujo_problem_age_seconds", {"problem": problem}, fact.oldest_s or 0.0 if fact else 0.0)
    yield Sample("flujo_sweep_lag_seconds", {}, machine.sweep_lag_s or 0.0)
    yield Sample("flujo_events_dropped", {}, machine.events_dropped)


def _of_limit(metric: str, name: str, places: int | None, used: int, waiting: int) -> Iterator[Sample]:
    labels = {"limit": name}
    if places is not None:
        yield Sample(f"{metric}_places", labels, places)
    yield Sample(f"{metric}_used", labels, used)
    yield Sample(f"{metric}_waiting", labels, waiting)


def _of_guards(breakers: Iterable[dict[str, Any]], rates: Iterable[dict[str, Any]]) -> Iterator[Sample]:
    for each in breakers:
        yield Sample("flujo_breaker_state", {"model": each["model"]}, STATES[each["state"]])
        yield Sample("flujo_breaker_waiting", {"model": each["model"]}, each["waiting"])
    for each in rates:
        yield Sample("flujo_rate_waiting", {"model": each["model"]}, each["waiting"])
        for unit in ("requests", "tokens"):
            if limit := (each["settings"] or {}).get(f"{unit}_per_minute"):
                yield Sample("flujo_rate_limit_per_minute", {"model": each["model"], "unit": unit}, limit)


def _of_budgets(budgets: Sequence[BudgetRecord], *, by_tenant: bool) -> Iterator[Sample]:
    parts = {each.scope.split(":", 1)[1].rpartition(":")[0]: _parts(each) for each in budgets}
    used = {
        tenant: max((taken / limit for _, limit, taken in of if limit), default=0.0) for tenant, of in parts.items()
    }
    yield Sample("flujo_budgets_near_limit", {}, sum(part >= NEAR for part in used.values()))
    yield Sample("flujo_budget_used_ratio", {"tenant": ""}, max(used.values(), default=0.0))
    for tenant in used if by_tenant else ():
        yield Sample("flujo_budget_used_ratio", {"tenant": tenant}, used[tenant])
        for unit, limit, taken in parts[tenant]:
            yield Sample(f"flujo_budget_left_{unit}", {"tenant": tenant}, limit - taken)


def _parts(budget: BudgetRecord) -> list[tuple[str, float, float]]:
    """Return each limit of a budget: its unit, how much it is, and how much of it is spent or reserved."""
    dollars = "dollars", budget.limit_usd, budget.spent_usd + budget.reserved_usd
    tokens = "tokens", budget.limit_tokens, budget.spent_tokens + budget.reserved_tokens
    return [(unit, limit, taken) for unit, limit, taken in (dollars, tokens) if limit is not None]
