"""The page of the fleet: who waits for what, queues, limits and guards of models, and the workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flujo_client.api import model_guards
from flujo_client.contract.limits import Guard
from flujo_client.contract.records import WorkerRecord
from flujo_client.explain.sentence import Sentence
from flujo_client.gateway import operator_requests, plan_requests, requests
from flujo_client.gateway.requests import Row
from flujo_client.ui.live import watch
from flujo_client.ui.view import digest_of, explain, go_to, page_of, reading, respond, user_of

LOOKED_AT: Final = 250
"""The number of live runs whose causes are shown; the oldest, because of them most are stuck."""
LONGEST: Final = 200
"""The maximum number of characters of a model's name."""
_ORDER: Final = ("stuck", "person", "bad", "off", "wait")
ACTIONS: Final[Mapping[tuple[str, str], tuple[str, Mapping[str, Any]]]] = {
    ("breaker", "close"): ("The breaker of {} closes; it opens again if calls still fail.", {"clears": True}),
    ("breaker", "disable"): ("No breaker holds back calls of {}.", {"edits": {"enabled": False}}),
    ("breaker", "enable"): ("A breaker guards {} again.", {"edits": {"enabled": True}}),
    ("rate", "resume"): ("{} is called at full speed.", {"clears": True}),
}
"""The note and the edit of each button of a guard."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Live runs that wait for the same reason, the oldest first; `cause` is its digest."""

    cause: str
    text: str
    sentence: Sentence
    runs: Sequence[str]
    since: datetime


def workers(request: Request) -> Response:
    """Show who waits for what, and what the fleet has."""
    watch(request)
    read = reading(request)
    rows, load = read.rows("live_runs", limit=LOOKED_AT), read.rows("load")
    fleet, settings = read.ask(requests.workers()), page_of(request).client.settings
    live = [each for each in fleet if each.is_live]
    data = {
        "waits": waits(rows, explain(request, [row["id"] for row in rows])),
        "live_runs": rows[0]["of_all"] if rows else 0,
        "looked_at": len(rows),
        "queues": queues(live, load, without=settings.worker.control_queue),
        "limits": read.ask(operator_requests.limits_in_use()),
        "gates": read.ask(operator_requests.gates_in_use()),
        "breakers": read.perform(model_guards.breakers()),
        "rates": read.perform(model_guards.rates()),
        "parked": [
            {**asdict(each), "change": each.change}
            for each in read.ask(plan_requests.parked_plans(settings.runs.on_change))
        ],
        "locks": [str(each) for each in read.ask(operator_requests.lock_holders())],
        "workers": [
            {**asdict(each), "busy": sum(row["attempts"] for row in load if row["worker"] == each.id)}
            for each in fleet
            if each.is_live or each.ended_at is None
        ],
    }
    return respond(request, "workers.html", data)


def waits(rows: Iterable[Row], sentences: Mapping[str, Sentence]) -> list[Wait]:
    """Group live runs by what they wait for: first what does not move by itself, then what most runs wait for."""
    found: dict[str, list[Row]] = {}

    def wait(some: Sequence[Row]) -> Wait:
        first = sentences[some[0]["id"]]
        return Wait(digest_of(first), first.shared, first, [row["id"] for row in some], some[0]["created_at"])

    for row in rows:
        sentence = sentences.get(row["id"])
        if sentence is not None and sentence.tone in _ORDER:
            found.setdefault(sentence.key, []).append(row)
    return sorted(map(wait, found.values()), key=lambda each: (_ORDER.index(each.sentence.tone), -len(each.runs)))


def queues(live: Iterable[WorkerRecord], load: Iterable[Row], *, without: str) -> list[dict[str, Any]]:
    """Return for each queue of attempts, which the control queue is not, its slots, how many are busy, and what waits for one."""
    found: dict[str, dict[str, Any]] = {}

    def of(name: str) -> dict[str, Any]:
        return found.setdefault(name, {"queue": name, "slots": 0, "busy": 0, "waiting": 0, "oldest_s": None})

    for worker in live:
        for name in {*(worker.queues or ())} - {without}:
            of(name)["slots"] += 0 if worker.is_stopping or worker.lacks else worker.slots
    for row in load:
        if row["worker"] is None:
            of(row["queue"]).update(waiting=row["attempts"], oldest_s=row["oldest_s"])
        else:
            of(row["queue"])["busy"] += row["attempts"]
    return sorted(found.values(), key=lambda each: each["queue"])


def edit_guard(request: Request) -> Response:
    """Close or disable a model's breaker, or end its slow-down."""
    form = request.state.form
    guard, model, act = (str(form.get(name, "")) for name in ("guard", "model", "do"))
    if (guard, act) not in ACTIONS or not model or model.split() != [model] or len(model) > LONGEST:
        raise HTTPException(400, "This form does not name a model and what to do.")
    note, change = ACTIONS[guard, act]
    known: Guard = "breaker" if guard == "breaker" else "rate"
    actor = user_of(request).name
    page_of(request).client.ask(operator_requests.edit_guard(known, model, **change, actor=actor))
    return go_to(request, "/workers", note.format(model))


ROUTES: Final = [Route("/workers", workers), Route("/workers/guard", edit_guard, methods=["POST"])]
