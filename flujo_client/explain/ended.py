"""Runs that have ended, in one sentence: a template for each status, and for each cause of a failure. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from flujo_client.contract.outcome import OWN_TIMEOUT, Fault
from flujo_client.explain import words
from flujo_client.explain.facts import RunFacts
from flujo_client.explain.sentence import Act, Sentence, Tone, span, times
from flujo_client.explain.words import Moves, Piece, code, details, line, own, parts, place, quote, sentence

RETRY: Final[tuple[Act, ...]] = ("retry",)
PARENT_ENDED: Final = "parent ended"
"""The reason of a child run that was stopped with its parent."""
_WHOLE_S: Final = 2.0
"""From this on, a deadline is written in whole seconds: the clocks of client and database differ by a part of one."""


def succeeded(facts: RunFacts) -> Sentence:
    """Say how long it took, and what helped."""
    run = facts.run
    took = own(f" in {span((run.ended_at - run.created_at).total_seconds())}") if run.ended_at else ""
    by = parts(" by the fallback of ", code(run.fell_back)) if run.fell_back else ""
    repaired = ", with a repaired answer" if run.is_repaired else ""
    about = run.name, run.fell_back, repaired
    return sentence("done", "ok", "Done", took, by, repaired, about=about, since=run.ended_at)


def cancelled(facts: RunFacts) -> Sentence:
    """Say who cancelled it, or which run replaced it."""
    run, at = facts.run, facts.failed
    about: tuple[object, ...] = (run.name,)
    if run.replaced_by is not None:
        before = f"replaced by run {run.replaced_by} ("
        reason = run.reason or ""
        gate = f": {line(reason[len(before) : -1])}" if reason.startswith(before) else ""
        wording = "Replaced by run ", words.named_run(run.replaced_by), gate
        return sentence("replaced", "off", *wording, about=about, since=run.ended_at)
    if run.reason == PARENT_ENDED:
        why = "Stopped, because the run it belongs to ended"
        return sentence("parent ended", "off", why, about=about, since=run.ended_at)
    about = *words.kind_of_place(facts, at), run.canceller, run.cancel_note
    return sentence("cancelled", "off", by_whom(facts, "Cancelled"), about=about, at=at, since=run.ended_at, acts=RETRY)


def by_whom(facts: RunFacts, verb: str) -> Piece:
    """Say who cancels a run, where it is, and why."""
    at = facts.failed or next(iter(facts.live), None)
    note = quote(facts.run.cancel_note or "")
    actor = line(facts.run.canceller or "") or "someone who gave no name"
    return parts(f"{verb} by {actor}", words.while_at(at), *((": ", note, ".") if note.text else ()))


def expired(facts: RunFacts) -> Sentence:
    """Say where it was when its deadline passed."""
    run, at, after = facts.run, facts.failed, ""
    if run.deadline_at is not None:
        allowed = (run.deadline_at - run.created_at).total_seconds()
        after = f": its deadline of {span(round(allowed) if allowed > _WHOLE_S else allowed)} passed"
    moves = Moves(fix="Retry it with a longer deadline_s.", since=run.ended_at, acts=RETRY)
    wording = "Ran out of time", words.while_at(at), after
    return sentence("deadline", "bad", *wording, about=words.kind_of_place(facts, at), at=at, **moves)


def failed(facts: RunFacts) -> Sentence:
    """Say where it failed, and why: as its child run does, if it failed with one."""
    run, at, fault = facts.run, facts.failed, facts.run.fault
    if facts.child is not None:
        child, about = facts.child[1], ("child", run.name, facts.child[1].key)
        wording = words.child_run("Failed in its child run", *facts.child)
        return sentence(child.cause, "bad", wording, about=about, fix=child.fix, since=run.ended_at, acts=RETRY)
    place_of_it = words.kind_of_place(facts, at)
    if fault is None:
        wording = _where(facts, "Failed", code(run.reason or ""))
        return sentence("error", "bad", wording, about=place_of_it, at=at, since=run.ended_at, acts=RETRY)
    cause = _BY_CODE.get(fault.code) or _BY_TYPE.get(fault.type_name) or _PROVIDER
    if cause.needs and cause.needs not in details(fault):
        cause = _ERROR
    wording = cause.wording(facts, fault) if cause.is_whole else _where(facts, cause.verb, cause.wording(facts, fault))
    seen = {"type": fault.type_name, "code": fault.code, "digest": fault.traceback_digest, **details(fault)}
    fix = cause.fix if isinstance(cause.fix, str) else cause.fix(facts, fault)
    moves = Moves(fix=fix, since=run.ended_at, acts=RETRY if cause.tone == "bad" else ())
    return sentence(cause.name, cause.tone, wording, about=(*place_of_it, *map(seen.get, cause.about)), at=at, **moves)


def _where(facts: RunFacts, verb: str, why: Piece) -> Piece:
    step = details(facts.run.fault).get("step")
    at: Piece = place(facts, facts.failed) if facts.failed is not None else code(step) if step else ""
    return parts(verb, " at " if at else "", at, ": " if parts(why) else "", why)


def _error(_: RunFacts, fault: Fault) -> Piece:
    return parts(words.raised(fault), words.frame(fault))


def _not_retried(facts: RunFacts, fault: Fault) -> str:
    at = facts.failed
    if fault.retryable or at is None or at.number >= (at.max_attempts or 0):
        return ""
    its_code = "its code says that " if fault.code == "NON_RETRYABLE" else ""
    return f"It was not retried: {its_code}another attempt cannot help."


def _timeout(_: RunFacts, fault: Fault) -> Piece:
    seconds = details(fault).get("timeout_s")
    return parts("no answer ", f"within {span(seconds)}" if seconds else "in time", words.frame(fault, ", while at "))


def _own_timeout(facts: RunFacts, fault: Fault) -> Piece:
    at = facts.failed
    after = own(f" after {span(at.latency_s)}") if at is not None and at.latency_s else ""
    if fault.message not in ("", OWN_TIMEOUT):
        return _error(facts, fault)
    return parts("a ", code(fault.type_name), " of its own code", after, words.frame(fault))


def _step_limit(facts: RunFacts, _: Fault) -> str:
    at = facts.failed
    return "" if at is None or not at.timeout_s else f"The step's own limit, {span(at.timeout_s)}, was not reached."


def _missing_module(facts: RunFacts, fault: Fault) -> Piece:
    worker, found = facts.failed and facts.failed.worker, words.frame(fault, " (")
    on = parts(" on worker ", code(worker)) if worker else ""
    return parts(code(fault.message), on, found, ")" if found else "")


def _refused(_: RunFacts, fault: Fault) -> Piece:
    seen = details(fault)
    model, what, more = seen.get("model"), line(str(seen.get("what") or "")), seen.get("more") or 0
    of = parts(" of ", code(model)) if model else ""
    rest = f", and {more} more place{'s' * (more > 1)}" if more else ""
    return parts("the answer", of, " was refused at ", code(seen["pointer"] or "/"), f": {what}" if what else "", rest)


def _rejected(_: RunFacts, fault: Fault) -> Piece:
    seen = details(fault)
    why = quote(seen.get("why") or "")
    return parts(code(seen["by"]), " rejected the output", *((": ", why, ".") if why.text else ()))


def _poison(facts: RunFacts, fault: Fault) -> Piece:
    at, how = facts.failed, details(fault).get("how")
    died, alone = "its process died", ""
    if at is not None:
        # The row counts the losses that it survived. The last one, which it did not, was alone.
        died = f"its process died {times(at.losses + 1)}"
        alone = f", {at.losses_alone + 1} of them while nothing else ran in it" if at.losses else ""
        how = (at.loss or {}).get("how") or how
    return parts(died, own(alone), parts("; the last time with ", code(how)) if how else "")


def _budget(facts: RunFacts, fault: Fault) -> Piece:
    seen, at = details(fault), facts.failed
    unit, named = seen.get("unit") or "usd", _budget_words(seen)
    names = ("limit", "spent", "asked", "reserved")
    limit, spent, asked, reserved = (words.amount(seen.get(name) or 0, unit) for name in names)
    if "asked" in seen:
        has = f": it asks for {asked}, and {named} of {limit} has {spent} spent and {reserved} reserved"
        return parts("Did not start", parts(" ", code(at.step)) if at is not None else "", has)
    after = parts(" after ", code(seen["spender"])) if seen.get("spender") else ""
    others = f", {reserved} reserved" if seen.get("reserved") else ""
    return parts("Stopped", after, f": {named} of {limit} is used up", own(f" ({spent} spent{others})"))


def _budget_words(seen: Mapping[str, Any]) -> str:
    name, day = line(str(seen.get("name") or "")), seen.get("day")
    if seen["budget"] == "tenant":
        return f"the budget of tenant {name}" + (f" for {day}" if day else "")
    return f"the budget of step {name}" if seen["budget"] == "step" else "the run's budget"


def _unanswered(_: RunFacts, fault: Fault) -> Piece:
    seconds = details(fault).get("waited_s")
    return f"nobody answered its question {f'within {span(seconds)}' if seconds else 'in time'}"


def _unreadable(_: RunFacts, fault: Fault) -> Piece:
    return parts("Failed, because one of its rows is damaged or missing: ", code(fault.message))


ENDED: Final = {"succeeded": succeeded, "cancelled": cancelled, "expired": expired, "failed": failed}
"""The template of each status that a run ends with."""


class _Cause(NamedTuple):
    """The template of a cause of a failure.

    Attributes:
        name: the cause.
        wording: writes the text after the place, or, if `is_whole`, all of it.
        fix: what a person can do, or what writes that.
        needs: a detail without which it is written as an ordinary error, as an older row is.
        about: what of the fault tells it from others with this cause at the same place.
    """

    name: str
    wording: Callable[[RunFacts, Fault], Piece]
    fix: str | Callable[[RunFacts, Fault], str] = ""
    needs: str = ""
    about: tuple[str, ...] = ()
    verb: str = "Failed"
    tone: Tone = "bad"
    is_whole: bool = False


_DIGEST: Final = ("digest",)
_CORRECT: Final = "Correct the prompt, or allow the conversion in the step's processing."
_HIGHER: Final = "Retry it with a higher limit, or raise the budget."
_ERROR: Final = _Cause("error", _error, _not_retried, about=("type", "code", "digest"))
_PROVIDER: Final = _Cause(
    "provider",
    lambda _, fault: parts("the model's provider answered ", words.raised(fault)),
    needs="status",
    about=("status", "model"),
)
_REJECTED: Final = _Cause("rejected", _rejected, "A rejection is not retried by itself.", needs="by", about=("by",))
_MISSING: Final = _Cause(
    "missing module", _missing_module, "Install it where the workers run, restart them, then retry.", about=_DIGEST
)
_BY_CODE: Final[Mapping[str, _Cause]] = {
    "STEP_TIMEOUT": _Cause("timeout", _timeout, "Raise timeout_s of the step, or make the call shorter."),
    "AGENT_IO_VALIDATION": _Cause("refused output", _refused, _CORRECT, "pointer", ("pointer", "rule", "model")),
    "VALIDATION": _REJECTED,
    "PLUGIN": _REJECTED,
    "USAGE_LIMIT_EXCEEDED": _Cause("budget", _budget, _HIGHER, "budget", ("budget", "name"), is_whole=True),
    "ATTEMPT_LOST": _Cause(
        "poison", _poison, "Look for memory, a crash in a C library, or os._exit. SIGKILL usually means out of memory."
    ),
    "LIMIT_REACHED": _Cause(
        "limit reached",
        lambda _, fault: f"{line(fault.message)}, and it does not wait for one",
        "Give the step a fallback, or the limit on_full='queue' to let it wait.",
    ),
    "NO_BRANCH": _Cause(
        "no branch", lambda _, fault: line(fault.message), "Add the branch or a default, deploy, then retry."
    ),
    "QUESTION_EXPIRED": _Cause("unanswered", _unanswered, "Retry it to ask again."),
    "EVENT_TIMED_OUT": _Cause("no event", lambda _, fault: line(fault.message), "Retry it to wait again."),
    "PIPELINE_ABORT": _Cause(
        "aborted", lambda _, fault: parts(quote(fault.message), "."), verb="Stopped by its own code", tone="off"
    ),
    "UNREADABLE": _Cause("unreadable", _unreadable, "If other runs have it too, restore the database.", is_whole=True),
}
_BY_TYPE: Final[Mapping[str, _Cause]] = {
    "TimeoutError": _Cause("own timeout", _own_timeout, _step_limit, needs="file", about=_DIGEST),
    "ModuleNotFoundError": _MISSING,
    "ImportError": _MISSING,
}
