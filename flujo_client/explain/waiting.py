"""Explain a run. Those that are under way get their sentence here: what they wait for, or who works on them. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final, Unpack

from flujo_client.contract.admission import START
from flujo_client.explain import words
from flujo_client.explain.ended import ENDED, by_whom
from flujo_client.explain.facts import AttemptFacts, FanOutFacts, GateFacts, LimitFacts, QueueFacts, RunFacts
from flujo_client.explain.sentence import Act, Part, Sentence, clock, ordinal, span, times
from flujo_client.explain.words import Moves, Piece, code, line, own, parts, place, quote, sentence, until

CANCEL: Final[tuple[Act, ...]] = ("cancel",)
_URGENCY: Final = ("paused", "running", "queued", "ready")
_SHOWN_HOLDERS: Final = 2
_UPGRADE: Final = "Move it with `flujo runs upgrade`, or deploy the old code."
_RESTART: Final = "Restart them with that code; it goes on by itself."
_PARKED: Final[Mapping[str, tuple[str, str, str, str]]] = {
    "import": ("import", "no worker can load it: ", "", "Deploy its code to the workers; it goes on by itself."),
    "code": ("changed code", "its code has changed (", ")", _UPGRADE),
    "newer": ("newer code", "the workers were started before its code (plan ", ")", _RESTART),
    "pinned": ("changed code", "its code has changed (", "), and it is pinned to the old one", _UPGRADE),
    "conversation": ("changed code", "its conversation was held with other code (", ")", _UPGRADE),
    "key": ("key", "no worker has the key ", "", "Give the workers this key; it goes on by itself."),
    "": ("parked", "", "", "It goes on once a worker has its code."),
}
"""For each reason to park a run: the cause, the words before and after what is stored of it, and what moves it. An older row has no reason."""


def explain(facts: RunFacts) -> Sentence:
    """Say where a run stopped, why, and what moves it."""
    run = facts.run
    if run.status in ENDED:
        return ENDED[run.status](facts)
    if run.cancel_requested_at is not None:
        return cancelling(facts)
    if run.status == "parked":
        return parked(facts)
    return live(facts) if facts.gate is None else gated(facts, facts.gate)


def cancelling(facts: RunFacts) -> Sentence:
    """Say who cancels it, until a worker has acknowledged that."""
    run, at = facts.run, next(iter(facts.live), None)
    fix = "" if facts.fleet.workers else "No worker is alive to acknowledge it."
    about, since = (run.name, run.canceller, run.cancel_note), run.cancel_requested_at
    return sentence("cancelling", "off", by_whom(facts, "Is being cancelled"), about=about, at=at, fix=fix, since=since)


def parked(facts: RunFacts) -> Sentence:
    """Say which code or key it lacks."""
    seen = facts.run.parked or {}
    cause, before, after, fix = _PARKED.get(str(seen.get("kind")), _PARKED[""])
    what = line(str(seen.get("what") or facts.run.reason or "no reason was recorded"))
    wording, about = parts("Parked: ", before, what if after else code(what), after), (facts.run.reference, what)
    acts: tuple[Act, ...] = ("upgrade", "cancel") if cause == "changed code" else CANCEL
    return sentence(cause, "stuck", wording, about=about, fix=fix, since=seen.get("at"), acts=acts)


def gated(facts: RunFacts, gate: GateFacts) -> Sentence:
    """Say which limit or window it waits at for its admission."""
    if not facts.fleet.workers:
        return _no_workers(facts, "Not begun", None)
    ahead = own(f"; {gate.ahead} ahead of it" if gate.ahead else "")
    if gate.name == START and gate.not_before is not None and gate.not_before > facts.now:
        begins = parts("Not begun: it waits for its time", own(f", {clock(gate.not_before, facts.now)}"))
        moved = Moves(since=facts.run.created_at, until=gate.not_before, acts=CANCEL)
        return sentence(START, "wait", begins, about=(facts.run.name,), **moved)
    cause, fix, moves, wording = "admission", "", None, parts(" lets it begin next", ahead)
    if gate.wait_s and gate.not_before is not None and gate.not_before > facts.now:
        cause, moves = "debounce", gate.not_before
        wording = parts(" waits for a newer input", own(f", and lets it begin at {clock(moves, facts.now)}"))
    elif gate.period_s:
        cause, moves = "throttle", gate.next_at
        following = own(f"; the next may at {clock(moves, facts.now)}") if moves else ""
        wording = parts(f" lets {gate.most} begin in {span(gate.period_s)}", following, ahead)
    elif gate.most is not None:
        fix = "It begins when a run that holds a place ends."
        wording = parts(f" has {gate.taken} of {gate.most} places taken", ahead)
    whole = parts("Not begun: the ", line(gate.name).replace(" ''", "").replace("'", ""), wording)
    moved = Moves(fix=fix, since=facts.run.created_at, until=moves, acts=CANCEL)
    return sentence(cause, "wait", whole, about=(facts.run.name, gate.name), **moved)


def live(facts: RunFacts) -> Sentence:
    """Say what holds it most: a person before work, and work before a wait."""
    run, fan_out = facts.run, facts.fan_out
    if facts.child is not None and not any(each.status == "running" for each in facts.live):
        child = facts.child[1]
        moves = Moves(fix=child.fix, acts=child.acts, since=child.since, until=child.until)
        wording = words.child_run("Waits for its child run", *facts.child)
        return sentence(child.cause, child.tone, wording, about=("child", run.name, child.key), **moves)
    if not facts.live:
        return _between_steps(facts)
    at = min(facts.live, key=_urgency)
    found = _attempt(facts, at)
    if fan_out is None or fan_out.total <= 1 or not (found.tone == "run" or found.cause == "lane"):
        return found
    wording, about = parts("Works through ", code(fan_out.step), own(_progress(fan_out))), (run.name, fan_out.step)
    return sentence("fan-out", "run", wording, about=about, at=at, since=run.started_at, acts=CANCEL)


def _between_steps(facts: RunFacts) -> Sentence:
    """Explain a run without a live attempt: a message in the control queue makes a worker continue it."""
    if not facts.fleet.workers:
        return _no_workers(facts, "Between two steps", None)
    if facts.lacks_worker(facts.fleet.control_queue):
        return _no_worker(facts, facts.fleet.control_queue, "Between two steps", None)
    run = facts.run
    return sentence("between steps", "run", "Between two steps", about=(run.name,), since=run.started_at)


def _progress(fan_out: FanOutFacts) -> str:
    rest = fan_out.total - fan_out.done - fan_out.failed - fan_out.under_way
    counts = ((fan_out.failed, "failed"), (fan_out.under_way, "under way"), (rest, "to come"))
    others = "".join(f", {number} {what}" for number, what in counts if number > 0)
    return f": {fan_out.done} of {fan_out.total} done{others}"


def _urgency(at: AttemptFacts) -> tuple[int, datetime, str]:
    is_lost = at.status == "running" and not at.has_lease
    return len(_URGENCY) if is_lost else _URGENCY.index(at.status), at.created_at, at.key


def _attempt(facts: RunFacts, at: AttemptFacts) -> Sentence:
    due = at.available_at
    guard, _, name = (at.waits_for or "").partition(" ")
    if at.status == "paused" and due is not None and due <= facts.now and not facts.fleet.workers:
        return _no_workers(facts, "Its time to wait is over at ", at)
    if at.status == "paused":
        event = (at.question or {}).get("event")
        return _person(facts, at) if event is None else _event(facts, at, str(event))
    if at.status == "running":
        return _running(facts, at) if at.has_lease else _lost(facts, at)
    if due is None:
        return _wait(facts, "lane", at, " for a lane of its fan-out")
    if not facts.fleet.workers:
        return _no_workers(facts, "Waits at ", at)
    if facts.lacks_worker(at.queue):
        return _no_worker(facts, at.queue, "Waits at ", at)
    if guard == "limit":
        return _limit(facts, at, name)
    if due > facts.now:
        return _GUARDS.get(guard, _later)(facts, at, name, due)
    return _queued(facts, at)


def _wait(
    facts: RunFacts, cause: str, at: AttemptFacts, *why: Piece, about: object = None, **moves: Unpack[Moves]
) -> Sentence:
    reason = words.kind_of_place(facts, at) if about is None else (about,)
    given = Moves(since=at.waits_since or at.created_at, acts=CANCEL) | moves
    return sentence(cause, "wait", "Waits at ", place(facts, at), *why, about=reason, at=at, **given)


def _event(facts: RunFacts, at: AttemptFacts, name: str) -> Sentence:
    question, closes = at.question or {}, at.available_at
    wording = parts(" for event ", code(name), own(until(closes, facts.now) if closes else ""))
    schema = question.get("schema")
    is_text = not isinstance(schema, Mapping) or schema.get("type") == "string"
    value = "VALUE" if is_text else "--input-json JSON"
    fix = f"Send it: `flujo send {facts.run.id} {shlex.quote(line(name))} {value}`."
    if question.get("refused"):
        fix = f"The last one was refused: {line(str(question['refused']))}"
    return _wait(facts, "event", at, wording, about=name, until=closes, fix=fix, since=at.created_at)


def _person(facts: RunFacts, at: AttemptFacts) -> Sentence:
    question, closes = at.question or {}, at.available_at
    asks = quote(question.get("message") or "")
    actor = line(str(question.get("actor") or "a person"))
    wording = parts("Waits at ", place(facts, at), f" for {actor}", ": " if asks.text else ".", asks)
    closing = own(f" Closes {clock(closes, facts.now)}.") if closes else ""
    fix = f"The last answer was refused: {line(str(question['refused']))}" if question.get("refused") else ""
    moves = Moves(fix=fix, since=at.created_at, until=closes, acts=("answer", "cancel"))
    return sentence("person", "person", wording, closing, about=words.kind_of_place(facts, at), at=at, **moves)


def _running(facts: RunFacts, at: AttemptFacts) -> Sentence:
    since = at.started_at or at.created_at
    cause, lost = "running", f", after {words.losses(at)}" if at.losses else ""
    if at.room:
        why = f", because it lost its process {times(at.losses)}" if at.losses else ""
        cause, lost = "quarantine", f", in quarantine ({at.room}){why}"
    wording = parts("Runs ", place(facts, at), " on ", code(at.worker), own(f" since {clock(since, facts.now)}"), lost)
    return sentence(cause, "run", wording, about=words.kind_of_place(facts, at), at=at, since=since, acts=CANCEL)


def _lost(facts: RunFacts, at: AttemptFacts) -> Sentence:
    worker = parts("Its worker ", code(at.worker or ""), " is gone while at ", place(facts, at))
    wording, about = parts(worker, "; another takes over when the lease is over"), words.kind_of_place(facts, at)
    return sentence("lost", "wait", wording, about=about, at=at, since=at.started_at or at.created_at, acts=CANCEL)


def _no_workers(facts: RunFacts, verb: str, at: AttemptFacts | None) -> Sentence:
    wording = parts(verb, place(facts, at) if at else "", ": no worker is alive")
    since = at.created_at if at else facts.run.created_at
    fix = "Start one: `flujo worker`, or `flujo up` for everything on this machine."
    return sentence("no workers", "stuck", wording, about=(), at=at, fix=fix, since=since, acts=CANCEL)


def _no_worker(facts: RunFacts, queue: str, verb: str, at: AttemptFacts | None) -> Sentence:
    where = parts(verb, place(facts, at) if at else "")
    moves = Moves(since=at.created_at if at else facts.run.started_at, acts=CANCEL)
    if queue in facts.fleet.lacking:
        keys = ", ".join(facts.fleet.lacking[queue]) or "a key"
        wording = parts(where, ": the workers of queue ", code(queue), " take no work, because they lack ", code(keys))
        moves["fix"] = "Restart them with the keys of all other processes."
        return sentence("key", "stuck", wording, about=(queue, keys), at=at, **moves)
    moves["fix"] = f"Start one: flujo worker -Q {line(queue)}"
    wording = parts(where, ": no worker consumes queue ", code(queue), _last_worker(at) if at and at.losses else "")
    return sentence("no worker", "stuck", wording, about=(queue,), at=at, **moves)


def _last_worker(at: AttemptFacts) -> Piece:
    worker = (at.loss or {}).get("worker")
    return parts("; its last one, ", code(worker), ", died") if worker else f"; it lost its process {times(at.losses)}"


def _limit(facts: RunFacts, at: AttemptFacts, name: str) -> Sentence:
    limit = facts.limits.get(name)
    if limit is None:
        return _wait(facts, "limit", at, " for limit ", code(name), about=name)
    taken = parts(f": {len(limit.holders)} of {limit.at_once} places are taken", _holders(limit))
    turn = limit.in_line.get(at.key)
    in_line = own(f"; {ordinal(turn + 1)} in line") if turn is not None else ""
    return _wait(facts, "limit", at, " for limit ", code(name), taken, in_line, about=name)


def _holders(limit: LimitFacts) -> Piece:
    runs = tuple(dict.fromkeys(limit.holders))
    shown = [part for run in runs[:_SHOWN_HOLDERS] for part in (Part("text", ", "), words.named_run(run))][1:]
    more = len(runs) - _SHOWN_HOLDERS
    return parts(" by ", shown, f" and {more} more" if more > 0 else "") if shown else ""


def _rate(facts: RunFacts, at: AttemptFacts, model: str, due: datetime) -> Sentence:
    why = parts(own(until(due, facts.now)), ": the rate limit of ", code(model), " is used up")
    fix = "See the limits with `flujo rates list`, and change them with `flujo rates set`."
    return _wait(facts, "rate limit", at, why, about=model, until=due, fix=fix)


def _breaker(facts: RunFacts, at: AttemptFacts, model: str, due: datetime) -> Sentence:
    last = at.fault_before
    seen = parts("; the last call gave ", words.raised(last)) if last and "status" in words.details(last) else ""
    why = parts(own(until(due, facts.now)), ": ", code(model), " fails, so its breaker is open", seen)
    fix = f"Let its calls through with `flujo breakers close '{line(model)}'`."
    return _wait(facts, "breaker", at, why, about=model, until=due, fix=fix)


def _sleep(facts: RunFacts, at: AttemptFacts, _: str, due: datetime) -> Sentence:
    wording = "Sleeps at ", place(facts, at), own(until(due, facts.now))
    moves = Moves(since=at.created_at, until=due, acts=CANCEL)
    return sentence("sleep", "wait", *wording, about=words.kind_of_place(facts, at), at=at, **moves)


def _later(facts: RunFacts, at: AttemptFacts, _: str, due: datetime) -> Sentence:
    """Say when an attempt begins that nothing but time holds."""
    fault, about = at.fault_before, words.kind_of_place(facts, at)
    cause, wording = "delayed", parts(" to begin ", place(facts, at))
    if fault is not None and fault.code == "WAITING":  # it is no try
        wording = parts(" to go on with ", place(facts, replace(at, number=1)), f": {line(fault.message)}")
    elif at.number > 1:
        why = parts(", after ", words.raised(fault), words.frame(fault)) if fault else ""
        cause, wording = "backoff", parts(" to try ", place(facts, at), " again", why)
        about = *about, fault.traceback_digest if fault else ""
    moves = Moves(since=at.failed_at or at.created_at, until=due, acts=CANCEL)
    return sentence(cause, "wait", "Waits", own(until(due, facts.now)), wording, about=about, at=at, **moves)


def _queued(facts: RunFacts, at: AttemptFacts) -> Sentence:
    seen, lost = facts.fleet.queues.get(at.queue, QueueFacts()), f", after {words.losses(at)}" if at.losses else ""
    slots = f", {seen.busy} of {seen.slots} slot{'s' * (seen.slots != 1)} busy" if seen.slots else ""
    number = facts.fleet.ahead.get(at.key)
    ahead = own(f"about {number} ahead of it in " if number else "")
    wording = parts(lost, ", next in queue ") if number == 0 else parts(lost, " for a slot: ", ahead, "queue ")
    return _wait(facts, "queued", at, wording, code(at.queue), slots, about=at.queue, since=at.created_at)


_GUARDS: Final = {"rate": _rate, "breaker": _breaker, "sleep": _sleep}
"""The templates of an attempt that waits for the guard of its model, or sleeps, until a time."""
