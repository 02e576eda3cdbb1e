"""The services' state as a table that fits on a screen. Pure, by the rules of `render`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from flujo_client.cli.format import age, counted, printable
from flujo_client.cli.render import status
from flujo_client.cli.tables import budget_line
from flujo_client.contract.deployment import LockHolder

SCREEN, DETAIL_WIDTH = 24, 50
"""`flujo status` fits into so many lines of 80 columns, of which the last column has so many at least."""


def services_table(state: Mapping[str, Any]) -> Table:
    """Draw what `flujo status` found (its `--json`, read as a table)."""
    table = Table.grid(padding=(0, 2))
    for name in ("postgres", "redis"):
        service = state[name]
        detail = service["error"] or service["url"]
        table.add_row(name, status("ok" if service["ok"] else "not ok"), Text(printable(detail), overflow="fold"))
    refused = state["refused"]
    if refused and refused["count"]:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in refused["reasons"].items())
        look = f"redis-cli lrange {refused['key']} 0 9"
        table.add_row("refused", f"{refused['count']:,}", Text(printable(f"{reasons}; look: {look}"), overflow="fold"))
    if state["workers"] is None:
        return table
    working = [worker for worker in state["workers"] if not worker["is_stopping"]]
    slots = counted(sum(worker["slots"] for worker in working), "slot")
    table.add_row("schema", str(state["schema"]), "")
    others = f"; {counted(state['other_workers'], 'process')} more on other queues" if state["other_workers"] else ""
    has_one = slots if working else "no run can continue without one"
    table.add_row("workers", str(len(working)), Text(has_one + others, overflow="fold"))
    if stopping := [printable(worker["id"]) for worker in state["workers"] if worker["is_stopping"]]:
        more = f" and {len(stopping) - 2:,} more" if len(stopping) > 2 else ""  # noqa: PLR2004 - two fit
        line = f"take no more work: {', '.join(stopping[:2])}{more}"
        table.add_row("stopping", str(len(stopping)), Text(line, overflow="fold"))
    waits = {**state["backlog"], "not admitted": state["waiting_runs"], "hooks pending": state["owed_hooks"]}
    for name, waiting in waits.items():
        table.add_row(name, f"{waiting['count']:,}", f"oldest {age(waiting['oldest_s'])}" if waiting["count"] else "")
    room = SCREEN - sum(_height(str(cell)) for cell in table.columns[-1].cells)
    for kind, number, line in _fitting(list(_details(state)), room):
        table.add_row(kind, number, Text(line, overflow="fold"))
    return table


def _fitting(details: Sequence[tuple[str, str, str]], room: int) -> Iterator[tuple[str, str, str]]:
    """Yield what fits into so many lines: the first of each kind before the second of any; and how many are left out."""
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
        yield "…", f"{rest:,}", "more lines, which `flujo status --json` has"


def _height(text: str) -> int:
    return sum(max(1, -(-len(line) // DETAIL_WIDTH)) for line in text.split("\n"))


def _details(state: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what holds attempts and runs back: its kind, a number, and how it is used."""
    for worker in state["workers"]:
        if worker["lacks"]:
            keys = ", ".join(map(printable, worker["lacks"]))
            yield "lacks key", "1", f"{printable(worker['id'])} takes no work: it lacks {keys}"
        if worker["slowed"] and not worker["is_stopping"]:
            yield "slowed", "1", f"{printable(worker['id'])} {_slowed_line(worker['slowed'])}"
    for holder in state["locks"]:
        yield "locked", "", f"rows, by {printable(str(LockHolder(**holder)))}: what needs them waits"
    for breaker in state["breakers"]:
        turned = f"{breaker['state'].replace('_', ' ')} for {age(breaker['since_s'])}"
        yield "breaker", "", f"{printable(breaker['model'])}: {turned}"
    for plan in state["parked"]:
        yield "parked", f"{plan['runs']:,}", _parked_line(plan)
    for budget in state["budgets"]:
        yield "budget", "", f"{printable(budget['scope'])}: {budget_line(budget)}"
    for limit in state["limits"]:
        used = f"{limit['in_use']} of {limit['at_once']} in use, {counted(limit['waiting'], 'attempt')} waiting"
        yield "limit", "", f"{printable(limit['name'])}: {used}"
    for gate in state["gates"]:
        places = "" if gate["most"] is None else f"{gate['taken']} of {gate['most']} places taken, "
        yield "run limit", "", f"{printable(gate['name'])}: {places}{counted(gate['waiting'], 'run')} waiting"


def _slowed_line(slowed: Mapping[str, Any]) -> str:
    waited = f", {slowed['waited_for_cpu']} % of it without a CPU" if slowed["waited_for_cpu"] else ""
    late = f"its event loop was late for {slowed['late']} % of a second{waited}"
    return f"takes {slowed['at_once']} of {slowed['of']} attempts at once: {late}"


def _parked_line(plan: Mapping[str, Any]) -> str:
    named = f"{printable(plan['reference'])} {plan['fingerprint']}"
    build = "" if plan["build"] is None else f", build {printable(plan['build'])}"
    if not plan["is_pinned"]:
        return f"{named}{build}: {printable(plan['reason'])}"
    if plan["change"] is None:
        return f"{named}{build}: pinned, a worker with that code is up"
    return f"{named}{build}: pinned, no live worker is known to have that code\n→ {printable(plan['change'])}"
