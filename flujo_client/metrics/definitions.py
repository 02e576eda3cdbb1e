"""The metrics: name, kind, labels and meaning of each. `docs/reference/metrics.md` is made from these tables."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

BUCKETS: Final = (
    *("0.01", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10"),
    *("30", "60", "300", "1800", "7200", "+Inf"),
)
"""The upper bounds of histograms, in seconds: those of `flujo_counted` in the schema."""
PROBLEMS: Final = (
    *("waiting", "stuck_runs", "parked_runs", "pinned_runs", "orphans", "dead_workers"),
    *("reservation_leaks", "owed_hooks", "open_breakers"),
)
"""What the health check finds in Postgres; each has a value, mostly 0, so that an alert has data."""
STATES: Final = {"closed": 0.0, "disabled": 0.0, "half_open": 1.0, "opened": 2.0}


class Metric(NamedTuple):
    """A metric.

    Attributes:
        labels: the names of its labels; those of celery-exporter where they mean the same: `queue_name`, `hostname`, `exception`.
        help: its meaning, for Prometheus and for the reference.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


class Sample(NamedTuple):
    """A value under a metric's name, or of a histogram under the name with `_bucket` or `_sum`; buckets are not cumulative."""

    name: str
    labels: dict[str, str]
    value: float


FLEET: Final = (
    Metric("flujo_up", "gauge", (), "1 if Postgres answered; otherwise 0, and there is no other metric"),
    Metric("flujo_broker_up", "gauge", (), "1 if the broker answered, otherwise 0"),
    Metric("flujo_runs_total", "counter", ("pipeline", "outcome"), "runs that ended, without child runs"),
    Metric("flujo_attempts_total", "counter", ("pipeline", "queue_name", "outcome"), "attempts at steps that ended"),
    Metric("flujo_attempt_failures_total", "counter", ("pipeline", "exception"), "failed attempts, by the error's class"),
    Metric("flujo_attempt_duration_seconds", "histogram", ("pipeline",), "how long attempts ran"),
    Metric("flujo_schedule_to_start_seconds", "histogram", ("queue_name",), "from when attempts could begin until they did: what a fleet that is too small makes longer"),
    Metric("flujo_retries_total", "counter", ("pipeline",), "attempts that repeated an earlier one"),
    Metric("flujo_leases_lost_total", "counter", ("pipeline",), "losses of attempts with their worker; known when they end"),
    Metric("flujo_output_repairs_total", "counter", ("pipeline", "stage"), "outputs that AROS accepted, by the stage that repaired them"),
    Metric("flujo_outputs_refused_total", "counter", ("pipeline",), "outputs of models that AROS refused"),
    Metric("flujo_tokens_total", "counter", ("pipeline", "model", "direction"), "tokens, `input` or `output`; the model `several` stands for more than one"),
    Metric("flujo_model_requests_total", "counter", ("pipeline", "model"), "requests to models"),
    Metric("flujo_cost_dollars_total", "counter", ("pipeline", "model"), "US dollars spent"),
    Metric("flujo_queue_length", "gauge", ("queue_name", "reason"), "attempts that have not ended, by what they [wait for](#reasons)"),
    Metric("flujo_queue_age_seconds", "gauge", ("queue_name", "reason"), "how long the oldest of them has waited, or run"),
    Metric("flujo_outbox_lag_seconds", "gauge", (), "how long the oldest due attempt has not been sent to the broker; 0 if all were"),
    Metric("flujo_workers", "gauge", ("hostname", "state"), "live worker processes: `working`, `slowed`, `lacks_key` or `stopping`"),
    Metric("flujo_slots", "gauge", ("queue_name",), "attempts that the working processes of a queue can run at once"),
    Metric("flujo_slots_used", "gauge", ("queue_name",), "attempts of the queue that run"),
    Metric("flujo_limit_places", "gauge", ("limit",), "places of a step's concurrency limit at which attempts run or wait"),
    Metric("flujo_limit_used", "gauge", ("limit",), "attempts that run under it"),
    Metric("flujo_limit_waiting", "gauge", ("limit",), "attempts that wait at it"),
    Metric("flujo_run_limit_places", "gauge", ("limit",), "places of a limit or window of runs at which runs wait"),
    Metric("flujo_run_limit_used", "gauge", ("limit",), "places that are taken"),
    Metric("flujo_run_limit_waiting", "gauge", ("limit",), "runs that wait for their admission"),
    Metric("flujo_breaker_state", "gauge", ("model",), "a circuit breaker: 0 closed, 1 half open, 2 open"),
    Metric("flujo_breaker_waiting", "gauge", ("model",), "attempts that wait for it"),
    Metric("flujo_rate_limit_per_minute", "gauge", ("model", "unit"), "a model's rate limit: `requests` or `tokens`"),
    Metric("flujo_rate_waiting", "gauge", ("model",), "attempts that wait for room in the window of the rate limit"),
    Metric("flujo_budgets_near_limit", "gauge", (), "tenants that have spent or reserved 80 % of today's budget; at most 20"),
    Metric("flujo_budget_used_ratio", "gauge", ("tenant",), "the used part of today's budget; the label is `` for the fullest of all, and others come with `metrics.tenants`"),
    Metric("flujo_budget_left_dollars", "gauge", ("tenant",), "what is left of today's budget, with `metrics.tenants`"),
    Metric("flujo_budget_left_tokens", "gauge", ("tenant",), "the same in tokens"),
    Metric("flujo_approvals_open", "gauge", ("pipeline", "step"), "questions that wait for a person"),
    Metric("flujo_approval_age_seconds", "gauge", (), "how long the oldest of them has waited; 0 if there are none"),
    Metric("flujo_dead_letters_total", "counter", ("reason",), "messages that workers refused since the broker was last emptied"),
    Metric("flujo_problems", "gauge", ("problem",), "what the [health check](health-check.md) finds wrong: how many of each"),
    Metric("flujo_problem_age_seconds", "gauge", ("problem",), "how long the oldest has lasted"),
    Metric("flujo_sweep_lag_seconds", "gauge", (), "how long live workers have been without a sweep; 0 without workers"),
    Metric("flujo_events_dropped", "gauge", (), "log lines of the last day that were not stored"),
    Metric("flujo_table_bytes", "gauge", ("table",), "the size of a table, with indexes and partitions"),
    Metric("flujo_oldest_transaction_seconds", "gauge", (), "the age of the oldest transaction in the database that this role may see"),
)  # fmt: skip
"""What is read from Postgres, for the fleet."""

PROCESS: Final = (
    Metric("flujo_worker_attempts_total", "counter", ("reference", "outcome"), "attempts that this process merged"),
    Metric("flujo_worker_attempt_duration_seconds", "histogram", (), "how long they ran"),
    Metric("flujo_worker_merges_refused_total", "counter", ("verdict",), "outcomes that came too late to be merged"),
    Metric("flujo_worker_leases_lost_total", "counter", (), "leases that ended before they were renewed"),
    Metric("flujo_worker_slots", "gauge", (), "attempts that it can run at once"),
    Metric("flujo_worker_slots_used", "gauge", (), "attempts that it works on"),
    Metric("flujo_worker_loop_late_seconds", "gauge", (), "how late its event loop is"),
    Metric("flujo_worker_lease_silent_seconds", "gauge", (), "how long ago it renewed its lease"),
)  # fmt: skip
"""What only a worker process knows. They begin at 0 with each start; what must not is in `FLEET`."""
