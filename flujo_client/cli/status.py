"""`flujo status`: show services, workers and waiting work. It starts nothing.

`--json` prints: ok; postgres and redis with ok, url (without its password) and error; schema, the newest migration applied; workers, the
live ones that consume a queue of ours or one that attempts wait in, with id, host, pid, slots, build, started_at, queues (null: not known)
is_stopping (it takes no more work), slowed (null, or at_once, of, late and
waited_for_cpu: its event loop is late, so it takes fewer attempts) and lacks (the keys that it lacks, such as value_keys.2026a: it takes no work); other_workers, how many live ones consume other queues only; backlog, the live attempts as ready,
queued and running, each with count and oldest_s; waiting_runs, those that wait for their admission, likewise; parked, the plans that parked
runs use, each with reference, fingerprint, build, runs, is_pinned, is_live (a live worker is of that build or has loaded that plan), reason
(of one of them) and change (what lets pinned runs that no live worker can take continue, else null); owed_hooks, the calls of hooks that
are still to be made, likewise; limits, the concurrency limits of steps with attempts that run or wait, each with name, at_once, in_use and
waiting; gates, the limits and windows at which runs wait for their admission, each with name, most (null: any number, runs only wait),
taken and waiting; breakers, the circuit breakers that are not closed, each with model, state and since_s; budgets, those of
tenants of which 80 % are spent or reserved today, as `lens show` shows them; locks, the sessions of Postgres whose transactions hold locks on
Flujo's tables for more than two seconds, each with pid, user, application, state and age_s (null: this role may not see it); refused, the messages that workers refused since Redis was last emptied, with count,
reasons (a number for each), kept, key (the Redis list they are kept in) and last_at. Parts that could not be read are null.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from flujo_client.api.client import FlujoClient
from flujo_client.cli.json_output import budget_shape
from flujo_client.cli.numbers import Real
from flujo_client.cli.output import UNREACHABLE, show, show_json
from flujo_client.cli.services_table import services_table
from flujo_client.cli.timeouts import LONGEST_S, within
from flujo_client.config.manager import ConfigManager, Settings
from flujo_client.contract.deployment import ParkedPlan
from flujo_client.contract.records import LIVE_ATTEMPT, WorkerRecord
from flujo_client.embedded.local import with_running_services
from flujo_client.gateway import guards, plan_requests, requests
from flujo_client.gateway.effects import CountRefused, Operation
from flujo_client.transport.dead_letters import Refused

WORKER_FIELDS = ("id", "host", "pid", "slots", "build", "started_at", "queues", "is_stopping", "slowed", "lacks")


@click.command("status")
@click.option("--timeout", type=Real(min=0.1, max=LONGEST_S), default=2.0, show_default=True, metavar="SECONDS")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.pass_context
def command(ctx: click.Context, *, timeout: float, as_json: bool) -> None:
    """Are the services there, who works, and what waits? Exits with 69 when a service is down."""
    state = _state(ConfigManager().settings(), timeout)
    if as_json:
        show_json(state)
    else:
        show(services_table(state))
    ctx.exit(0 if state["ok"] else UNREACHABLE)


def _state(settings: Settings, timeout: float) -> dict[str, Any]:
    joined = with_running_services(settings)
    if joined is None:
        down = {"ok": False, "url": None, "error": f"no embedded services run in {settings.embedded_dir}"}
        return _shape(down, down, None, None)
    with FlujoClient(joined) as client:
        database, facts = _probe(lambda: _ask(client), timeout)
        broker, refused = _probe(lambda: _refused(client), timeout)
    return _shape(
        {**database, "url": str(joined.database_url)},
        {**broker, "url": str(joined.broker_url)},
        facts,
        refused,
    )


def _shape(
    postgres: dict[str, Any], redis: dict[str, Any], facts: dict[str, Any] | None, refused: dict[str, Any] | None
) -> dict[str, Any]:
    facts = facts or {
        "schema": None,
        "workers": None,
        "other_workers": None,
        "backlog": None,
        "waiting_runs": None,
        "owed_hooks": None,
        "parked": None,
        "limits": None,
        "gates": None,
        "breakers": None,
        "budgets": None,
        "locks": None,
    }
    services = {"postgres": postgres, "redis": redis}
    return {"ok": postgres["ok"] and redis["ok"], **services, **facts, "refused": refused}


def _ask(client: FlujoClient) -> dict[str, Any]:
    own = client.settings.worker
    queues = {own.attempts_queue, own.control_queue, *client.ask(requests.live_queues())}
    live: list[WorkerRecord] = [each for each in client.ask(requests.workers()) if each.is_live and each.slots]
    ours = [worker for worker in live if worker.serves(queues)]
    backlog = client.ask(requests.backlog())
    pending, pending_since = client.ask(requests.pending_hooks())
    counts = {status: backlog.get(status, (0, 0.0)) for status in LIVE_ATTEMPT}
    return {
        "schema": client.ask(requests.schema_version()).version,
        "workers": [{name: getattr(worker, name) for name in WORKER_FIELDS} for worker in ours],
        "other_workers": len(live) - len(ours),
        "backlog": {status: {"count": count, "oldest_s": oldest} for status, (count, oldest) in counts.items()},
        "waiting_runs": dict(zip(("count", "oldest_s"), backlog.get("waiting", (0, 0.0)), strict=True)),
        "owed_hooks": {"count": pending, "oldest_s": pending_since},
        "parked": [
            _parked_shape(each) for each in client.ask(plan_requests.parked_plans(client.settings.runs.on_change))
        ],
        "limits": [asdict(each) for each in client.ask(guards.limits_in_use())],
        "gates": [asdict(each) for each in client.ask(guards.gates_in_use())],
        "breakers": [asdict(each) for each in client.ask(guards.open_breakers())],
        "budgets": [budget_shape(each) for each in client.ask(requests.budgets_near_limit())],
        "locks": [asdict(each) for each in client.ask(guards.lock_holders())],
    }


def _parked_shape(plan: ParkedPlan) -> dict[str, Any]:
    return {**asdict(plan), "change": plan.change}


def _refused(client: FlujoClient) -> dict[str, Any]:
    refused = client.perform(_count_refused())
    return {"count": refused.count, **asdict(refused)}


def _count_refused() -> Operation[Refused]:
    refused: Refused = yield CountRefused()
    return refused


def _probe(call: Callable[[], Any], timeout: float) -> tuple[dict[str, Any], Any]:
    try:
        return {"ok": True, "error": None}, within(timeout, call)
    except Exception as error:  # noqa: BLE001 - any error is the answer that the person wants
        return {"ok": False, "error": " ".join(str(error).split())}, None
