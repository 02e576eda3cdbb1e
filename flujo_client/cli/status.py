"""`flujo status`: show services, workers and waiting work. It starts nothing. `docs/reference/cli.md` lists what `--json` prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any

import click
from rich.table import Table

from flujo_client.api.client import FlujoClient
from flujo_client.cli.drawing import Cell, coloured, grid
from flujo_client.cli.format import age, counted, printable
from flujo_client.cli.options import Real, option
from flujo_client.cli.output import OK, UNREACHABLE, CommandResult, printed, show
from flujo_client.cli.tables import budget_line
from flujo_client.cli.timeouts import LONGEST_S, tried
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
WAITS = ("sleeping", "for_events")
"""The things that live attempts wait for, which are counted separately."""
SCREEN, DETAIL_WIDTH = 24, 50
"""`flujo status` fits into so many lines of 80 columns, of which the last column has so many at least."""


@click.command("status")
@option("--timeout", type=Real(min=0.1, max=LONGEST_S), default=2.0, show_default=True, metavar="SECONDS")
@printed()
def command(*, timeout: float) -> CommandResult:
    """Are the services there, who works, and what waits? Exits with 69 when a service is down."""
    state = _state(ConfigManager().settings(), timeout)
    return CommandResult(state, lambda: show(services_table(state)), OK if state["ok"] else UNREACHABLE)


def _state(settings: Settings, timeout: float) -> dict[str, Any]:
    joined, facts, refused = with_running_services(settings), None, None
    if joined is None:
        down = {"ok": False, "url": None, "error": f"no embedded services run in {settings.embedded_dir}"}
        services: dict[str, dict[str, Any]] = {"postgres": down, "redis": down}
    else:
        with FlujoClient(joined) as client:
            facts, error = tried(lambda: _ask(client), timeout)
            refused, broker_error = tried(lambda: client.perform(_refused()), timeout)
        broker = {**_service(joined.broker_url, broker_error), "shares_state": joined.has_redis}
        services = {"postgres": _service(joined.database_url, error), joined.broker_name: broker}
    is_ok = all(service["ok"] for service in services.values())
    return {"ok": is_ok, **services, **(facts or dict.fromkeys(FACTS)), "refused": refused}


def _service(url: object, error: str | None) -> dict[str, Any]:
    return {"ok": error is None, "error": error and " ".join(error.split()), "url": str(url)}


def _ask(client: FlujoClient) -> dict[str, Any]:
    own = client.settings.worker
    queues = {own.attempts_queue, own.control_queue, *client.ask(requests.live_queues())}
    live: list[WorkerRecord] = [each for each in client.ask(requests.workers()) if each.is_live and each.slots]
    ours = [worker for worker in live if worker.serves(queues)]
    backlog = client.ask(requests.backlog())
    parked = client.ask(plan_requests.parked_plans(client.settings.runs.on_change))
    listed: dict[str, Iterable[Any]] = {
        "limits": client.ask(operator_requests.limits_in_use()),
        "gates": client.ask(operator_requests.gates_in_use()),
        "breakers": client.ask(operator_requests.open_breakers()),
        "budgets": client.ask(requests.budgets_near_limit()),
        "locks": client.ask(operator_requests.lock_holders()),
    }
    return {
        "schema": client.ask(requests.schema_version()).version,
        "workers": [{name: getattr(worker, name) for name in WORKER_FIELDS} for worker in ours],
        "other_workers": len(live) - len(ours),
        "backlog": {status: _waiting(*backlog.get(status, (0, 0.0))) for status in (*LIVE_ATTEMPT, *WAITS)},
        "waiting_runs": _waiting(*backlog.get("waiting", (0, 0.0))),
        "owed_hooks": _waiting(*client.ask(requests.pending_hooks())),
        "parked": [{**asdict(each), "change": each.change} for each in parked],
        **{name: [asdict(each) for each in found] for name, found in listed.items()},
    }


def _waiting(count: int, oldest_s: float | None) -> dict[str, Any]:
    return {"count": count, "oldest_s": oldest_s}


def _refused() -> Operation[dict[str, Any]]:
    refused: Refused = yield AskBroker(lambda post: post.broker.refused())
    return {"count": refused.count, **asdict(refused)}


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
        if (count := waiting["count"]) or name not in WAITS:
            yield name.replace("_", " "), count, f"oldest {age(waiting['oldest_s'])}" if count else None


def _fitting(details: Sequence[tuple[str, int | None, str]], room: int) -> Iterator[tuple[str, int | None, str]]:
    """Yield the details that fit into so many lines, the first of each kind before the second of any, and the number of omitted lines."""
    kinds = [kind for kind, _, _ in details]
    ranked = sorted(range(len(details)), key=lambda place: kinds[:place].count(kinds[place]))
    heights = accumulate(_height(details[place][2]) for place in ranked)
    kept = {place for place, height in zip(ranked, heights, strict=True) if height < room}
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
        if (slowed := worker["slowed"]) and not worker["is_stopping"]:
            waited = f", {slowed['waited_for_cpu']} % of it without a CPU" if slowed["waited_for_cpu"] else ""
            late = f"its event loop was late for {slowed['late']} % of a second{waited}"
            yield "slowed", 1, f"{worker['id']} takes {slowed['at_once']} of {slowed['of']} attempts at once: {late}"
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


def _parked_line(plan: Mapping[str, Any]) -> str:
    named = f"{plan['reference']} {plan['fingerprint']}"
    build = "" if plan["build"] is None else f", build {plan['build']}"
    if not plan["is_pinned"]:
        return f"{named}{build}: {plan['reason']}"
    if plan["change"] is None:
        return f"{named}{build}: pinned, a worker with that code is up"
    return f"{named}{build}: pinned, no live worker is known to have that code\n→ {plan['change']}"
