"""A trace set made by hand, and the machine's rows, for tests of the health check: planted in Postgres, in one transaction.

Within a transaction `now()` stands still, so what is planted lies exactly where it is said to lie.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import psycopg
from psycopg.types.json import Jsonb

from flujo_client.config.models import Health
from flujo_client.gateway import operator_requests
from flujo_client.gateway.requests import Request, statement
from flujo_client.health.facts import ArosFacts, HealthQuery, MachineFacts

AT = datetime(2026, 3, 2, 12, tzinfo=UTC)
"""When the golden reports were made."""


class Traced(NamedTuple):
    """A run that began so many hours ago, with its attempts: steps and what their metadata hold."""

    run: str
    pipeline: str
    hours: float
    attempts: Sequence[tuple[str, dict[str, Any] | None]] = ()


def attempt_metadata(agent: str | None, model: str | None, **stages: int) -> dict[str, Any]:
    """What `aros/tally.py` leaves of an attempt: of whom, and how often each stage acted."""
    whom = {"aros.agent_id": agent, "aros.model_id": model}
    metadata: dict[str, Any] = {key: value for key, value in whom.items() if value is not None}
    if stages:
        metadata["aros.coercion.total"] = sum(stages.values())
    return metadata | {f"aros.coercion.stage.{stage}": count for stage, count in stages.items()}


def clerk(*transforms: str, **stages: int) -> dict[str, Any]:
    """An attempt of the agent that reads orders, under structured output."""
    metadata = attempt_metadata("clerk", "openai:gpt-4o", **stages) | {"aros.soe.count": 1, "aros.soe.mode": "auto"}
    return metadata | ({"aros.coercion.transforms": list(transforms)} if transforms else {})


def scribe(*transforms: str, **stages: int) -> dict[str, Any]:
    """An attempt of the agent that writes letters, whose provider knows no structured output."""
    skipped = {"aros.soe.skipped": 1, "aros.soe.skipped.unsupported_provider": 1}
    metadata = attempt_metadata("scribe", "local:llama", **stages) | skipped
    return metadata | ({"aros.coercion.transforms": list(transforms)} if transforms else {})


def plan(result: str) -> dict[str, Any]:
    """An attempt whose plan was checked."""
    return attempt_metadata("judge", "openai:gpt-4o") | {"aros.precheck.total": 1, f"aros.precheck.{result}": 1}


REFUSED = {"aros.coercion.failed": 1, "aros.coercion.failed.schema": 1}

TRACES = (
    Traced("o1", "orders", 20, [("read", clerk("fence", extract=1)), ("plan", plan("pass")), ("ship", None)]),
    Traced("o2", "orders", 14, [("read", clerk()), ("plan", plan("fail")), ("plan", plan("pass"))]),
    Traced(
        "o3",
        "orders",
        5,
        [("read", clerk("fence", "str->int", extract=1, semantic=2)), ("plan", plan("skipped"))],
    ),
    Traced("o4", "orders", 1, [("read", clerk("fence", "str->int", extract=2, semantic=1)), ("plan", plan("pass"))]),
    Traced(
        "l1",
        "letters",
        10,
        [("=write()", scribe("json5", tolerant=1) | REFUSED), ("=write()", scribe("json5", tolerant=1))],
    ),
    Traced(
        "l2",
        "letters",
        3,
        [
            ("=write()", scribe("json5", "json-repair", tolerant=2)),
            ("=write()", scribe("json5", tolerant=1) | {"aros.cut": 1}),
            ("=write()", scribe("json5", tolerant=1)),
            (
                "watch",
                {
                    "aros.shadow.coercion.total": 1,
                    "aros.shadow.coercion.stage.tolerant": 1,
                    "aros.shadow.coercion.failed": 1,
                },
            ),
            ("count", {"hits": 3}),
        ],
    ),
    Traced("o0", "orders", 30, [("read", clerk("fence", extract=9))]),
)
"""Six runs of the last day, and one before it."""


def plant(connection: psycopg.Connection[Any], traces: Sequence[Traced] = TRACES) -> None:
    """Record runs that have ended, with their attempts."""
    for trace in traces:
        began = timedelta(hours=trace.hours)
        plant_run(connection, trace.run, name=trace.pipeline, status="succeeded", began=began, ended=began)
        for number, (step, metadata) in enumerate(trace.attempts, 1):
            plant_attempt(connection, f"{trace.run}:{number}", step=step, metadata=metadata, began=began, ended=began)


def plant_run(
    connection: psycopg.Connection[Any], run: str, *, name: str = "p", status: str = "running", **more: Any
) -> None:
    """Record a run. `began` and `ended` are how long ago; what else is given is in its row."""
    connection.execute(
        "INSERT INTO flujo_pipelines (fingerprint, reference, name, version, plan) VALUES (%s, %s, %s, '1', '{}') ON CONFLICT DO NOTHING",
        [f"of {name}", f"shop:{name}", name],
    )
    row = {"id": run, "fingerprint": f"of {name}", "reference": f"shop:{name}", "name": name, "status": status}
    fixed = {"input": b"\x00", "queue": "flujo.attempts", "digest": "d"}
    _insert(connection, "flujo_runs", row | fixed | _times(more))


def plant_attempt(
    connection: psycopg.Connection[Any], key: str, *, step: str = "s", status: str = "succeeded", **more: Any
) -> None:
    """Record an attempt of the run that its key begins with."""
    run, _, number = key.partition(":")
    row = {
        "key": key,
        "run_id": run,
        "address": number,
        "step": step,
        "number": 1,
        "status": status,
        "queue": "flujo.attempts",
    }
    _insert(connection, "flujo_attempts", row | _times(more))


def plant_worker(
    connection: psycopg.Connection[Any],
    name: str,
    *,
    lease_s: float,
    ended: timedelta | None = None,
    up_s: float = 3600,
) -> None:
    """Record a worker whose lease is over in so many seconds."""
    connection.execute(
        "INSERT INTO flujo_workers (id, host, pid, build, slots, lease_until, started_at, ended_at) "
        "VALUES (%s, 'h', 1, 'b', 8, now() + make_interval(secs => %s), now() - make_interval(secs => %s), now() - %s::interval)",
        [name, lease_s, up_s, ended],
    )


def swept(connection: psycopg.Connection[Any], seconds_ago: float) -> None:
    """Have the last sweep been so long ago."""
    connection.execute("UPDATE flujo_sweeps SET swept_at = now() - make_interval(secs => %s)", [seconds_ago])


def aros_facts(connection: psycopg.Connection[Any], question: HealthQuery) -> ArosFacts:
    """Ask, on a connection of the test's own."""
    facts: ArosFacts = _answer(connection, operator_requests.aros(question))
    return facts


def machine_facts(
    connection: psycopg.Connection[Any], question: HealthQuery, health: Health | None = None
) -> MachineFacts:
    """Ask, on a connection of the test's own."""
    facts: MachineFacts = _answer(connection, operator_requests.machine(question, health or Health()))
    return facts


def _answer(connection: psycopg.Connection[Any], request: Request[Any]) -> Any:
    for each in (request.bounds, request):
        rows = connection.execute(statement(each.name, each.home), each.parameters).fetchall()
    return request.read(rows)


def _times(row: dict[str, Any]) -> dict[str, Any]:
    """`began`, `ended` and `due` are the columns of the same meaning, as long ago as they say."""
    columns = {"began": "started_at", "ended": "ended_at", "due": "available_at", "made": "created_at"}
    return {columns.get(name, name): value for name, value in row.items()}


def _insert(connection: psycopg.Connection[Any], table: str, row: dict[str, Any]) -> None:
    values = {name: Jsonb(value) if isinstance(value, dict) else value for name, value in row.items()}
    places = ", ".join("now() - %s::interval" if isinstance(value, timedelta) else "%s" for value in values.values())
    connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places})", list(values.values()))
