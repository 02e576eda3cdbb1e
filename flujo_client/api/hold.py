"""Why a live run makes no progress, and what would continue it. `hold_of` is pure; `hold` asks for the facts.

In: what a run and its child runs are at, and the live workers. Out: a Hold, or None where a worker will continue it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from flujo_client.contract.limits import waits_in_words
from flujo_client.contract.records import HeldRecord, RunRecord, WorkerRecord
from flujo_client.gateway import requests
from flujo_client.gateway.effects import Operation, query

LONG_RETRY_S: Final = 5.0
"""A retry within fewer seconds is ordinary work."""
_WAYS_OUT: Final = {
    "breaker": "calls of the model fail: `flujo breakers list` shows since when, `flujo breakers close MODEL` lets them through",
    "rate": "it is called when there is room: `flujo rates list` shows the limits, `flujo rates` changes them",
    "limit": "it begins when another attempt ends: `flujo status` shows the limits",
    "retry": "`flujo lens trace RUN` shows why it failed",
}


class Hold(NamedTuple):
    """Why a run makes no progress, and what to do about it; `needs_worker`: a worker that starts just now would change it."""

    why: str
    way_out: str
    needs_worker: bool = False

    def __str__(self) -> str:
        return f"{self.why}\n  → {self.way_out}"


def hold(run: RunRecord, services: str = "") -> Operation[Hold | None]:
    """Ask what holds a run, if anything does; `services` are where it was looked for, as `Settings.services_named` says."""
    held = yield from query(requests.holds(run.id))
    workers = (yield from query(requests.workers())) if any(each.queue for each in held) else []
    return hold_of(run, held, workers, services)


def hold_of(
    run: RunRecord, held: Sequence[HeldRecord], workers: Sequence[WorkerRecord], services: str = ""
) -> Hold | None:
    """Return what holds a run.

    Args:
        run: the run.
        held: what it and the child runs it waits for are at.
        workers: the worker processes, live or not.
        services: the Postgres and Redis that were looked at, in words.
    """
    for each in held:
        if each.queue is None:
            which = "it" if each.run == run.id else f"its child run {each.run}"
            return Hold(
                f"{which} is parked: {each.reason or 'no reason was recorded'}",
                "it continues once a worker can load that code",
            )
    if run.status == "paused":
        return Hold("it waits for an answer from a person", f"`flujo approvals list --run {run.id}` shows the question")
    for each in held:
        if each.queue is not None and not any(worker.serves([each.queue]) for worker in workers):
            return _no_worker(each.queue, workers, services)
    for each in held:
        if each.wait is not None and (each.wait["for"] != "retry" or (each.in_s or 0.0) >= LONG_RETRY_S):
            return Hold(f"step '{each.step}' waits {waits_in_words(each.wait)}", _way_out(each, run))
    if run.waits_for is not None:
        return Hold(f"it waits for its admission, at {run.waits_for}", "it begins when there is room for it")
    return None


def _way_out(held: HeldRecord, run: RunRecord) -> str:
    wait = held.wait or {}
    way = _WAYS_OUT[wait["for"]].replace("RUN", run.id)
    return way.replace("MODEL", f"'{wait['model']}'") if "model" in wait else way


def _no_worker(queue: str, workers: Sequence[WorkerRecord], services: str) -> Hold:
    if not any(worker.is_live for worker in workers):
        way_out = "start one: `flujo worker`, or `flujo up` for everything on this machine"
        if not services:
            return Hold("no worker is running", way_out, needs_worker=True)
        other = "; if your workers use others, give this process their FLUJO_DATABASE_URL and FLUJO_BROKER_URL"
        return Hold(f"no worker is running for {services}", way_out + other, needs_worker=True)
    consumed = sorted({each for worker in workers if worker.is_live for each in worker.queues or ()})
    return Hold(
        f"no worker consumes its queue '{queue}'; the live workers consume {', '.join(consumed) or 'no queue'}",
        f"start one that does: `flujo worker -Q {queue}`, or add the queue to the -Q of one of your workers",
        needs_worker=True,
    )
