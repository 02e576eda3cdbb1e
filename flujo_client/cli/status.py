"""`flujo status`: show services, workers and waiting work. It starts nothing.

`--json` prints: ok; postgres and redis, or rabbitmq, with ok, url (without its password) and error, the broker also with shares_state (workers
share breakers, rate limits and cached results in a Redis); schema, the newest migration applied; workers, the
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
reasons (a number for each), kept, key (the Redis list, or the queue, they are kept in) and last_at. Parts that could not be read are null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.table import Table

from flujo_client.api.client import FlujoClient
from flujo_client.cli.drawing import Cell, coloured, grid
from flujo_client.cli.format import age, counted, printable
from flujo_client.cli.options import Real
from flujo_client.cli.output import UNREACHABLE, show, show_json
from flujo_client.cli.tables import budget_line
from flujo_client.cli.timeouts import LONGEST_S, within
from flujo_client.config.manager import ConfigManager, Settings
from flujo_client.contract.deployment import LockHolder
from flujo_client.contract.records import LIVE_ATTEMPT, WorkerRecord
from flujo_client.embedded.local import with_running_services
from flujo_client.gateway import operator_requests, plan_requests, requests
from flujo_client.gateway.effects import AskBroker, Operation
from flujo_client.health.doctor import UNSHARED
from flujo_client.transport.dead_letters import Refused

FACTS = (
    *("schema", "workers", "other_workers", "backlog", "waiting_runs", "owed_hooks"),
    *("parked", "limits", "gates", "breakers", "budgets", "locks"),
)
WORKER_FIELDS = ("id", "host", "pid", "slots", "build", "started_at", "queues", "is_stopping", "slowed", "lacks")
SCREEN, DETAIL_WIDTH = 24, 50
"""`flujo status` fits into so many lines of 80 columns, of which the last column has so many at least."""


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
        return _shape({"postgres": down, "redis": down}, None, None)
    with FlujoClient(joined) as client:
        database, facts = _probe(lambda: _ask(client), timeout)
        broker, refused = _probe(lambda: client.perform(_refused()), timeout)
    services = {"postgres": {**database, "url": str(joined.database_url)}}
    services[joined.broker_name] = {**broker, "url": str(joined.broker_url), "shares_state": joined.has_redis}
    return _shape(services, facts, refused)


def _shape(
    services: dict[str, dict[str, Any]], facts: dict[str, Any] | None, refused: dict[str, Any] | None
) -> dict[str, Any]:
    is_ok = all(service["ok"] for service in services.values())
    return {"ok": is_ok, **services, **(facts or dict.fromkeys(FACTS)), "refused": refused}


def _ask(client: FlujoClient) -> dict[str, Any]:
    own = client.settings.worker
    queues = {own.attempts_queue, own.control_queue, *client.ask(requests.live_queues())}
    live: list[WorkerRecord] = [each for each in client.ask(requests.workers()) if each.is_live and each.slots]
    ours = [worker for worker in live if worker.serves(queues)]
    backlog = client.ask(requests.backlog())
    pending, pending_since = client.ask(requests.pending_hooks())
    parked = client.ask(plan_requests.parked_plans(client.settings.runs.on_change))
    counts = {status: backlog.get(status, (0, 0.0)) for status in LIVE_ATTEMPT}
    return {
        "schema": client.ask(requests.schema_version()).version,
        "workers": [{name: getattr(worker, name) for name in WORKER_FIELDS} for worker in ours],
        "other_workers": len(live) - len(ours),
        "backlog": {status: {"count": count, "oldest_s": oldest} for status, (count, oldest) in counts.items()},
        "waiting_runs": dict(zip(("count", "oldest_s"), backlog.get("waiting", (0, 0.0)), strict=True)),
        "owed_hooks": {"count": pending, "oldest_s": pending_since},
        "parked": [{**asdict(each), "change": each.change} for each in parked],
        "limits": [asdict(each) for each in client.ask(operator_requests.limits_in_use())],
        "gates": [asdict(each) for each in client.ask(operator_requests.gates_in_use())],
        "breakers": [asdict(each) for each in client.ask(operator_requests.open_breakers())],
        "budgets": [asdict(each) for each in client.ask(requests.budgets_near_limit())],
        "locks": [asdict(each) for each in client.ask(operator_requests.lock_holders())],
    }


def _refused() -> Operation[dict[str, Any]]:
    refused: Refused = yield AskBroker(lambda post: post.broker.refused())
    return {"count": refused.count, **asdict(refused)}


def _probe(call: Callable[[], Any], timeout: float) -> tuple[dict[str, Any], Any]:
    try:
        return {"ok": True, "error": None}, within(timeout, call)
    except Exception as error:  # noqa: BLE001 - any error is the answer that the person wants
        return {"ok": False, "error": " ".join(str(error).split())}, None


def services_table(state: Mapping[str, Any]) -> Table:
    """Draw the state that `flujo status --json` prints as a table."""
    rows = list(_services(state))
    if state["workers"] is not None:
        rows += _fitting(list(_details(state)), SCREEN - sum(_height(line or "") for _, _, line in rows))
    return grid(rows)


def _services(state: Mapping[str, Any]) -> Iterator[tuple[str, Cell, str | None]]:
    for name in ("postgres", "redis", "rabbitmq"):
        if service := state.get(name):
            yield name, coloured("ok" if service["ok"] else "not ok"), service["error"] or service["url"]
            if not service.get("shares_state", True):
                yield "", None, UNSHARED
    refused = state["refused"]
    if refused and refused["count"]:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in refused["reasons"].items())
        look = "rabbitmqadmin get queue={} count=9" if "rabbitmq" in state else "redis-cli lrange {} 0 9"
        yield "refused", refused["count"], f"{reasons}; look: {look.format(refused['key'])}"
    if state["workers"] is None:
        return
    working = [worker for worker in state["workers"] if not worker["is_stopping"]]
    slots = counted(sum(worker["slots"] for worker in working), "slot")
    yield "schema", state["schema"], None
    others = f"; {counted(state['other_workers'], 'process')} more on other queues" if state["other_workers"] else ""
    yield "workers", len(working), (slots if working else "no run can continue without one") + others
    if stopping := [worker["id"] for worker in state["workers"] if worker["is_stopping"]]:
        more = f" and {len(stopping) - 2:,} more" if len(stopping) > 2 else ""  # noqa: PLR2004 - two fit
        yield "stopping", len(stopping), f"take no more work: {', '.join(stopping[:2])}{more}"
    waits = {**state["backlog"], "not admitted": state["waiting_runs"], "hooks pending": state["owed_hooks"]}
    for name, waiting in waits.items():
        yield name, waiting["count"], f"oldest {age(waiting['oldest_s'])}" if waiting["count"] else None


def _fitting(details: Sequence[tuple[str, int | None, str]], room: int) -> Iterator[tuple[str, int | None, str]]:
    """Yield the details that fit into so many lines, the first of each kind before the second of any, and the number of omitted lines."""
    ranked = sorted(
        range(len(details)), key=lambda place: sum(each[0] == details[place][0] for each in details[:place])
    )
    kept, left = set[int](), room - 1
    for place in ranked:
        left -= _height(details[place][2])
        if left < 0:
            break
        kept.add(place)
    yield from (each for place, each in enumerate(details) if place in kept)
    if rest := len(details) - len(kept):
        yield "…", rest, "more lines, which `flujo status --json` has"


def _height(text: str) -> int:
    return sum(max(1, -(-len(line) // DETAIL_WIDTH)) for line in printable(text).split("\n"))


def _details(state: Mapping[str, Any]) -> Iterator[tuple[str, int | None, str]]:
    """Yield the obstacles of attempts and runs: the kind of each, a number, and a description."""
    for worker in state["workers"]:
        if worker["lacks"]:
            yield "lacks key", 1, f"{worker['id']} takes no work: it lacks {', '.join(worker['lacks'])}"
        if worker["slowed"] and not worker["is_stopping"]:
            yield "slowed", 1, f"{worker['id']} {_slowed_line(worker['slowed'])}"
    for holder in state["locks"]:
        yield "locked", None, f"rows, by {LockHolder(**holder)}: what needs them waits"
    for breaker in state["breakers"]:
        turned = f"{breaker['state'].replace('_', ' ')} for {age(breaker['since_s'])}"
        yield "breaker", None, f"{breaker['model']}: {turned}"
    for plan in state["parked"]:
        yield "parked", plan["runs"], _parked_line(plan)
    for budget in state["budgets"]:
        yield "budget", None, f"{budget['scope']}: {budget_line(budget)}"
    for limit in state["limits"]:
        used = f"{limit['in_use']} of {limit['at_once']} in use, {counted(limit['waiting'], 'attempt')} waiting"
        yield "limit", None, f"{limit['name']}: {used}"
    for gate in state["gates"]:
        places = "" if gate["most"] is None else f"{gate['taken']} of {gate['most']} places taken, "
        yield "run limit", None, f"{gate['name']}: {places}{counted(gate['waiting'], 'run')} waiting"


def _slowed_line(slowed: Mapping[str, Any]) -> str:
    waited = f", {slowed['waited_for_cpu']} % of it without a CPU" if slowed["waited_for_cpu"] else ""
    late = f"its event loop was late for {slowed['late']} % of a second{waited}"
    return f"takes {slowed['at_once']} of {slowed['of']} attempts at once: {late}"


def _parked_line(plan: Mapping[str, Any]) -> str:
    named = f"{plan['reference']} {plan['fingerprint']}"
    build = "" if plan["build"] is None else f", build {plan['build']}"
    if not plan["is_pinned"]:
        return f"{named}{build}: {plan['reason']}"
    if plan["change"] is None:
        return f"{named}{build}: pinned, a worker with that code is up"
    return f"{named}{build}: pinned, no live worker is known to have that code\n→ {plan['change']}"
