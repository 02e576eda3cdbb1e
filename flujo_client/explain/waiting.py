"""Runs that are under way, in one sentence: what they wait for, or who works on them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final, Unpack

from flujo_client.explain.ended import by_whom
from flujo_client.explain.facts import AttemptFacts, GateFacts, LimitFacts, QueueFacts, RunFacts
from flujo_client.explain.sentence import Act, Part, Sentence, clock, ordinal, span, times
from flujo_client.explain.words import (
    Moves,
    Piece,
    child_run,
    code,
    details,
    frame,
    kind_of_place,
    line,
    losses,
    lowered,
    named_run,
    own,
    parts,
    place,
    quote,
    raised,
    sentence,
    stop,
    until,
)

CANCEL: Final[tuple[Act, ...]] = ("cancel",)
_URGENCY: Final = ("paused", "running", "queued", "ready")
_SHOWN_HOLDERS: Final = 2
_PARKED: Final[Mapping[str, tuple[str, str, str]]] = MappingProxyType(
    {
        "import": ("no worker can load it: ", "", "Deploy its code to the workers; it goes on by itself."),
        "code": ("its code has changed (", ")", "Move it with `flujo runs upgrade`, or deploy the old code."),
        "pinned": (
            "it is pinned to code that no worker has (",
            ")",
            "Start a worker with the old code, or move it with `flujo runs upgrade`.",
        ),
        "key": ("no worker has the key ", "", "Give the workers this key; it goes on by itself."),
        "conversation": (
            "its conversation was held with other code (",
            ")",
            "Move it with `flujo runs upgrade`, or deploy the old code.",
        ),
    }
)
"""For each reason to park a run: the words before and after what is stored of it, and what moves it."""


def cancelling(facts: RunFacts) -> Sentence:
    """Say who cancels it, until a worker has acknowledged that."""
    fix = "" if facts.fleet.workers else "No worker is alive to acknowledge it."
    about = facts.run.name, facts.run.canceller, facts.run.cancel_note
    told, since = by_whom(facts, "Is being cancelled"), facts.run.cancel_requested_at
    return sentence("cancelling", "off", told, about=about, at=next(iter(facts.live), None), fix=fix, since=since)


def parked(facts: RunFacts) -> Sentence:
    """Say which code or key it lacks."""
    seen = facts.run.parked or {}
    before, after, fix = _PARKED.get(str(seen.get("kind")), ("", "", "It goes on once a worker has its code."))
    what = line(str(seen.get("what") or facts.run.reason or "no reason was recorded"))
    cause = seen.get("kind") if seen.get("kind") == "import" or not seen else "changed code"
    told = parts("Parked: ", before, code(what) if cause == "import" else what, after, ".")
    about, acts = (facts.run.reference, what), CANCEL if cause == "import" else ("upgrade", "cancel")
    return sentence(cause or "parked", "stuck", told, about=about, fix=fix, since=seen.get("at"), acts=acts)


def gated(facts: RunFacts, gate: GateFacts) -> Sentence:
    """Say which limit or window it waits at for its admission."""
    if not facts.fleet.workers:
        return _no_workers(facts, "Not begun", None)
    name = "the " + line(gate.name).replace(" ''", "").replace("'", "")
    ahead = own(f"; {gate.ahead} ahead of it" if gate.ahead else "")
    cause, fix, moves = "admission", "", None
    if gate.wait_s and gate.not_before is not None and gate.not_before > facts.now:
        cause, moves = "debounce", gate.not_before
        told = parts(" waits for a newer input", own(f", and lets it begin at {clock(moves, facts.now)}"))
    elif gate.period_s:
        cause, moves = "throttle", gate.next_at
        following = own(f"; the next may at {clock(moves, facts.now)}") if moves else ""
        told = parts(f" lets {gate.most} begin in {span(gate.period_s)}", following, ahead)
    elif gate.most is None:
        told = parts(" lets it begin next", ahead)
    else:
        fix = "It begins when a run that holds a place ends."
        told = parts(f" has {gate.taken} of {gate.most} places taken", ahead)
    since = facts.run.created_at
    about = (facts.run.name, gate.name)
    return sentence(
        cause, "wait", f"Not begun: {name}", told, ".", about=about, fix=fix, since=since, until=moves, acts=CANCEL
    )


def live(facts: RunFacts) -> Sentence:
    """Say what holds it most: a person before work, and work before a wait."""
    if facts.child is not None and not any(each.status == "running" for each in facts.live):
        run_id, child = facts.child
        told = parts("Waits for its child run", child_run(run_id), ": ", lowered(child.parts))
        about = "child", facts.run.name, child.key
        moves = Moves(fix=child.fix, acts=child.acts, since=child.since, until=child.until)
        return sentence(child.cause, child.tone, told, about=about, **moves)
    if not facts.live:
        return sentence(
            "between steps", "run", "Between two steps.", about=(facts.run.name,), since=facts.run.started_at
        )
    at = min(facts.live, key=_urgency)
    found = _attempt(facts, at)
    fan_out = facts.fan_out
    if fan_out is None or fan_out.total <= 1 or not (found.tone == "run" or found.cause == "lane"):
        return found
    rest = fan_out.total - fan_out.done - fan_out.failed - fan_out.under_way
    counts = ((fan_out.failed, "failed"), (fan_out.under_way, "under way"), (rest, "to come"))
    progress = [
        f"{fan_out.done} of {fan_out.total} done",
        *(f"{number} {what}" for number, what in counts if number > 0),
    ]
    told = parts("Works through ", code(fan_out.step), own(f": {', '.join(progress)}"), ".")
    plan_place = facts.run.name, fan_out.step
    return sentence("fan-out", "run", told, about=plan_place, at=at, since=facts.run.started_at, acts=CANCEL)


def _urgency(at: AttemptFacts) -> tuple[int, datetime]:
    is_lost = at.status == "running" and not at.has_lease
    return len(_URGENCY) if is_lost else _URGENCY.index(at.status), at.created_at


def _attempt(facts: RunFacts, at: AttemptFacts) -> Sentence:
    due = at.available_at
    guard, _, name = (at.waits_for or "").partition(" ")
    if at.status == "paused":
        return _person(facts, at)
    if at.status == "running":
        return _running(facts, at) if at.has_lease else _lost(facts, at)
    if due is None:
        return _wait(facts, "lane", at, "Waits at ", place(facts, at), " for a lane of its fan-out.")
    if not facts.fleet.workers:
        return _no_workers(facts, "Waits at ", at)
    if facts.lacks_worker(at.queue):
        return _no_worker(facts, at)
    if guard == "limit":
        return _limit(facts, at, name)
    if due > facts.now:
        return _GUARDS.get(guard, _later)(facts, at, name, due)
    return _queued(facts, at)


def _wait(
    facts: RunFacts,
    cause: str,
    at: AttemptFacts,
    *pieces: Piece,
    about: object = None,
    **moves: Unpack[Moves],
) -> Sentence:
    reason = kind_of_place(facts, at) if about is None else (about,)
    given = Moves(since=at.waits_since or at.created_at, acts=CANCEL) | moves
    return sentence(cause, "wait", *pieces, about=reason, at=at, **given)


def _person(facts: RunFacts, at: AttemptFacts) -> Sentence:
    question = at.question or {}
    asks, closes = quote(question.get("message") or ""), at.available_at
    told = parts("Waits at ", place(facts, at), " for ", line(str(question.get("actor") or "a person")))
    end = parts(": ", asks) if asks.text else "."
    closing = own(f" Closes {clock(closes, facts.now)}.") if closes else ""
    fix = f"The last answer was refused: {line(str(question['refused']))}" if question.get("refused") else ""
    about = kind_of_place(facts, at)
    acts: tuple[Act, ...] = ("answer", "cancel")
    return sentence(
        "person",
        "person",
        told,
        end,
        closing,
        about=about,
        at=at,
        fix=fix,
        since=at.created_at,
        until=closes,
        acts=acts,
    )


def _running(facts: RunFacts, at: AttemptFacts) -> Sentence:
    since = at.started_at or at.created_at
    told = parts("Runs ", place(facts, at), " on ", code(at.worker), own(f" since {clock(since, facts.now)}"))
    cause, lost = "running", f", after {losses(at)}" if at.losses else ""
    if at.room:
        why = f", because it lost its process {times(at.losses)}" if at.losses else ""
        cause, lost = "quarantine", f", in quarantine ({at.room}){why}"
    about = kind_of_place(facts, at)
    return sentence(cause, "run", told, lost, ".", about=about, at=at, since=since, acts=CANCEL)


def _lost(facts: RunFacts, at: AttemptFacts) -> Sentence:
    worker = parts("Its worker ", code(at.worker), " is") if at.worker else "Its worker is"
    after = "; another takes over when the lease is over."
    return _wait(
        facts, "lost", at, worker, " gone while at ", place(facts, at), after, since=at.started_at or at.created_at
    )


def _no_workers(facts: RunFacts, verb: str, at: AttemptFacts | None) -> Sentence:
    told = parts(verb, place(facts, at) if at else "", ": no worker is alive.")
    since = at.created_at if at else facts.run.created_at
    fix = "Start one: `flujo worker`, or `flujo up` for everything on this machine."
    return sentence("no workers", "stuck", told, about=(), at=at, fix=fix, since=since, acts=CANCEL)


def _no_worker(facts: RunFacts, at: AttemptFacts) -> Sentence:
    last: Piece = f"; it lost its process {times(at.losses)}" if at.losses else ""
    if at.losses and (worker := (at.loss or {}).get("worker")):
        last = parts("; its last one, ", code(worker), ", died")
    told = parts("Waits at ", place(facts, at), ": no worker consumes queue ", code(at.queue), last, ".")
    fix, since = f"Start one: flujo worker -Q {line(at.queue)}", at.created_at
    return sentence("no worker", "stuck", told, about=(at.queue,), at=at, fix=fix, since=since, acts=CANCEL)


def _limit(facts: RunFacts, at: AttemptFacts, name: str) -> Sentence:
    limit, told = facts.limits.get(name), parts("Waits at ", place(facts, at), " for limit ", code(name))
    if limit is None:
        return _wait(facts, "limit", at, told, ".", about=name)
    taken = f": {len(limit.holders)} of {limit.at_once} places are taken"
    turn = limit.in_line.get(at.key)
    line_up = own(f"; {ordinal(turn + 1)} in line") if turn is not None else ""
    return _wait(facts, "limit", at, told, taken, _holders(limit), line_up, ".", about=name)


def _holders(limit: LimitFacts) -> Piece:
    runs = tuple(dict.fromkeys(limit.holders))
    shown = [part for run in runs[:_SHOWN_HOLDERS] for part in (Part("text", ", "), named_run(run))][1:]
    more = len(runs) - _SHOWN_HOLDERS
    return parts(" by ", shown, f" and {more} more" if more > 0 else "") if shown else ""


def _rate(facts: RunFacts, at: AttemptFacts, model: str, due: datetime) -> Sentence:
    when, end = own(until(due, facts.now)), parts(": the rate limit of ", code(model), " is used up.")
    fix = "See the limits with `flujo rates list`, and change them with `flujo rates set`."
    return _wait(facts, "rate limit", at, "Waits at ", place(facts, at), when, end, about=model, until=due, fix=fix)


def _breaker(facts: RunFacts, at: AttemptFacts, model: str, due: datetime) -> Sentence:
    last = at.fault_before
    seen = parts("; the last call gave ", stop(raised(last))) if last and "status" in details(last) else "."
    when, end = own(until(due, facts.now)), parts(": ", code(model), " fails, so its breaker is open", seen)
    fix = f"Let its calls through with `flujo breakers close '{line(model)}'`."
    return _wait(facts, "breaker", at, "Waits at ", place(facts, at), when, end, about=model, until=due, fix=fix)


def _later(facts: RunFacts, at: AttemptFacts, _: str, due: datetime) -> Sentence:
    when = own(until(due, facts.now))
    if at.number == 1:
        return _wait(facts, "delayed", at, "Waits", when, " to begin ", place(facts, at), ".", until=due)
    fault = at.fault_before
    found = frame(fault)
    why = parts(", after ", [raised(fault)] if found else stop(raised(fault)), found) if fault else ""
    digest = fault.traceback_digest if fault else ""
    about = "|".join((*kind_of_place(facts, at), digest))
    end = "." if not fault or found else ""
    told = parts("Waits", when, " to try ", place(facts, at), " again", why, end)
    return _wait(facts, "backoff", at, told, about=about, until=due, since=at.failed_at or at.created_at)


def _queued(facts: RunFacts, at: AttemptFacts) -> Sentence:
    seen, queue = facts.fleet.queues.get(at.queue, QueueFacts()), code(at.queue)
    slots = f", {seen.busy} of {seen.slots} slot{'s' * (seen.slots != 1)} busy." if seen.slots else "."
    lost = f", after {losses(at)}," if at.losses else ""
    if at.ahead == 0:
        told = parts(lost or ",", " next in queue ")
    else:
        ahead = own(f"about {at.ahead} ahead of it in " if at.ahead else "")
        told = parts(lost.rstrip(","), " for a slot: ", ahead, "queue ")
    return _wait(
        facts, "queued", at, "Waits at ", place(facts, at), told, queue, slots, about=at.queue, since=at.created_at
    )


_GUARDS: Final = MappingProxyType({"rate": _rate, "breaker": _breaker})
"""The templates of an attempt that waits for the guard of its model until a time."""
