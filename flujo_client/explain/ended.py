"""Runs that have ended, in one sentence: a template for each status, and for each cause of a failure. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from flujo_client.contract.outcome import Fault
from flujo_client.explain.facts import RunFacts
from flujo_client.explain.sentence import Act, Part, Sentence, span, times
from flujo_client.explain.words import (
    Piece,
    amount,
    child_run,
    code,
    details,
    frame,
    kind_of_place,
    line,
    lowered,
    named_run,
    own,
    parts,
    place,
    quote,
    raised,
    sentence,
    stop,
    while_at,
)

Template = Callable[[RunFacts, Fault], Sentence]
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
    return sentence("done", "ok", "Done", took, by, repaired, ".", about=about, since=run.ended_at)


def cancelled(facts: RunFacts) -> Sentence:
    """Say who cancelled it, or which run replaced it."""
    run = facts.run
    if run.replaced_by is not None:
        gate = (run.reason or "").removeprefix(f"replaced by run {run.replaced_by} (").removesuffix(")")
        why = "" if gate == run.reason or not gate else f": {line(gate)}"
        told: Piece = parts("Replaced by run ", named_run(run.replaced_by), why, ".")
        return sentence("replaced", "off", told, about=(run.name,), since=run.ended_at)
    if run.reason == PARENT_ENDED:
        told = "Stopped, because the run it belongs to ended."
        return sentence("parent ended", "off", told, about=(run.name,), since=run.ended_at)
    about = *kind_of_place(facts, facts.failed), run.canceller, run.cancel_note
    told = by_whom(facts, "Cancelled")
    return sentence("cancelled", "off", told, about=about, at=facts.failed, since=run.ended_at, acts=RETRY)


def by_whom(facts: RunFacts, verb: str) -> Piece:
    """Say who cancels a run, where it is, and why."""
    at = facts.failed or next(iter(facts.live), None)
    note = quote(facts.run.cancel_note or "")
    why = parts(": ", note, ".") if note.text else "."
    return parts(f"{verb} by {line(facts.run.canceller or '') or 'someone who gave no name'}", while_at(at), why)


def expired(facts: RunFacts) -> Sentence:
    """Say where it was when its deadline passed."""
    run, after = facts.run, ""
    if run.deadline_at is not None:
        allowed = (run.deadline_at - run.created_at).total_seconds()
        after = f": its deadline of {span(round(allowed) if allowed > _WHOLE_S else allowed)} passed"
    told = parts("Ran out of time", while_at(facts.failed), after, ".")
    about, fix = kind_of_place(facts, facts.failed), "Retry it with a longer deadline_s."
    return sentence("deadline", "bad", told, about=about, at=facts.failed, fix=fix, since=run.ended_at, acts=RETRY)


def failed(facts: RunFacts) -> Sentence:
    """Say where it failed, and why: as its child run does, if it failed with one."""
    if facts.child is not None:
        run_id, child = facts.child
        told = parts("Failed in its child run", child_run(run_id), ": ", lowered(child.parts))
        about, since = ("child", facts.run.name, child.key), facts.run.ended_at
        return sentence(child.cause, "bad", told, about=about, fix=child.fix, since=since, acts=RETRY)
    fault = facts.run.fault
    if fault is None:
        told = parts(_where(facts), *_after(code(facts.run.reason or "")), ".")
        return sentence(
            "error", "bad", told, about=kind_of_place(facts, facts.failed), since=facts.run.ended_at, acts=RETRY
        )
    return _template(fault)(facts, fault)


def _template(fault: Fault) -> Template:
    seen = details(fault)
    needs, template = _BY_CODE.get(fault.code) or _BY_TYPE.get(fault.type_name) or ("status", _provider)
    return template if not needs or needs in seen else _error


def _where(facts: RunFacts, verb: str = "Failed") -> Piece:
    if facts.failed is not None:
        return parts(f"{verb} at ", place(facts, facts.failed))
    step = details(facts.run.fault).get("step")
    return parts(f"{verb} at ", code(step)) if step else verb


def _after(part: Part) -> tuple[Piece, ...]:
    return (": ", part) if part.text else ()


def _failure(
    facts: RunFacts, cause: str, *pieces: Piece, about: tuple[object, ...] = (), fix: str = "", tone: str = "bad"
) -> Sentence:
    told, reason = parts(*pieces), (*kind_of_place(facts, facts.failed), *about)
    return sentence(
        cause,
        "off" if tone == "off" else "bad",
        told,
        about=reason,
        at=facts.failed,
        fix=fix,
        since=facts.run.ended_at,
        acts=RETRY if tone == "bad" else (),
    )


def _error(facts: RunFacts, fault: Fault) -> Sentence:
    found, at = frame(fault), facts.failed
    end: Piece = parts(found, ".") if found else ""
    message: Piece = raised(fault) if found else stop(raised(fault))
    is_final = not fault.retryable and at is not None and at.number < (at.max_attempts or 0)
    why = (
        "its code says that another attempt cannot help"
        if fault.code == "NON_RETRYABLE"
        else "another attempt cannot help"
    )
    about = fault.type_name, fault.code, fault.traceback_digest
    fix = f"It was not retried: {why}." if is_final else ""
    return _failure(facts, "error", _where(facts), ": ", message, end, about=about, fix=fix)


def _timeout(facts: RunFacts, fault: Fault) -> Sentence:
    within = details(fault).get("timeout_s")
    limit = f": no answer within {span(within)}" if within else ": no answer in time"
    fix = "Raise timeout_s of the step, or make the call shorter."
    return _failure(facts, "timeout", _where(facts), limit, frame(fault, ", while at "), ".", fix=fix)


def _own_timeout(facts: RunFacts, fault: Fault) -> Sentence:
    at = facts.failed
    after = own(f" after {span(at.latency_s)}") if at is not None and at.latency_s else ""
    told = parts(_where(facts), ": a ", code(fault.type_name), " of its own code", after, frame(fault), ".")
    fix = f"The step's own limit, {span(at.timeout_s)}, was not reached." if at is not None and at.timeout_s else ""
    return _failure(facts, "own timeout", told, about=(fault.traceback_digest,), fix=fix)


def _missing_module(facts: RunFacts, fault: Fault) -> Sentence:
    worker = facts.failed and facts.failed.worker
    on = parts(" on worker ", code(worker)) if worker else ""
    found = frame(fault, " (")
    told = parts(_where(facts), ": ", code(fault.message), on, parts(found, ")") if found else "", ".")
    fix = "Install it where the workers run, restart them, then retry."
    return _failure(facts, "missing module", told, about=(fault.traceback_digest,), fix=fix)


def _provider(facts: RunFacts, fault: Fault) -> Sentence:
    told = parts(_where(facts), ": the model's provider answered ", stop(raised(fault)))
    seen = details(fault)
    return _failure(facts, "provider", told, about=(seen["status"], seen.get("model")))


def _refused_output(facts: RunFacts, fault: Fault) -> Sentence:
    seen = details(fault)
    model = parts(" of ", code(seen["model"])) if seen.get("model") else ""
    what, more = line(str(seen.get("what") or "")), seen.get("more") or 0
    rest = f", and {more} more place{'s' * (more > 1)}" if more else ""
    told = parts(_where(facts), ": the answer", model, " was refused at ", code(seen["pointer"] or "/"))
    fix = "Correct the prompt, or allow the conversion in the step's processing."
    about = seen["pointer"], seen.get("rule"), seen.get("model")
    return _failure(facts, "refused output", told, f": {what}" if what else "", rest, ".", about=about, fix=fix)


def _rejected(facts: RunFacts, fault: Fault) -> Sentence:
    seen = details(fault)
    why = quote(seen.get("why") or "")
    told = parts(_where(facts), ": ", code(seen["by"]), " rejected the output", *_after(why), ".")
    return _failure(facts, "rejected", told, about=(seen["by"],), fix="A rejection is not retried by itself.")


def _poison(facts: RunFacts, fault: Fault) -> Sentence:
    at, how = facts.failed, details(fault).get("how")
    if at is None:
        told = parts(_where(facts), ": its process died")
    else:
        # The row counts the losses that it survived. The last one, which it did not, was alone.
        alone = f", {at.losses_alone + 1} of them while nothing else ran in it" if at.losses else ""
        how = (at.loss or {}).get("how") or how
        died = f": its process died {times(at.losses + 1)}"
        told = parts(_where(facts), died, own(alone))
    last = parts("; the last time with ", code(how)) if how else ""
    fix = "Look for memory, a crash in a C library, or os._exit. SIGKILL usually means out of memory."
    return _failure(facts, "poison", told, last, ".", fix=fix)


def _budget(facts: RunFacts, fault: Fault) -> Sentence:
    seen = details(fault)
    unit, named = seen.get("unit") or "usd", _budget_words(seen)
    limit, spent = (amount(seen.get(name) or 0, unit) for name in ("limit", "spent"))
    if "asked" in seen:
        asked, reserved = amount(seen["asked"], unit), amount(seen.get("reserved") or 0, unit)
        step = parts(" ", code(facts.failed.step)) if facts.failed is not None else ""
        told = parts(
            "Did not start",
            step,
            f": it asks for {asked}, and {named} of {limit} has {spent} spent and {reserved} reserved.",
        )
    else:
        after = parts(" after ", code(seen["spender"])) if seen.get("spender") else ""
        told = parts("Stopped", after, f": {named} of {limit} is used up", own(f" ({spent} spent)"), ".")
    fix = "Retry it with a higher limit, or raise the budget."
    return _failure(facts, "budget", told, about=(seen["budget"], seen.get("name")), fix=fix)


def _budget_words(seen: Mapping[str, object]) -> str:
    name, day = line(str(seen.get("name") or "")), seen.get("day")
    match seen["budget"]:
        case "tenant":
            return f"the budget of tenant {name}" + (f" for {day}" if day else "")
        case "step":
            return f"the budget of step {name}"
    return "the run's budget"


def _limit_reached(facts: RunFacts, fault: Fault) -> Sentence:
    told = parts(_where(facts), f": {line(fault.message)}, and it does not wait for one.")
    fix = "Give the step a fallback, or the limit on_full='queue' to let it wait."
    return _failure(facts, "limit reached", told, fix=fix)


def _no_branch(facts: RunFacts, fault: Fault) -> Sentence:
    told = parts(_where(facts), f": {line(fault.message)}.")
    return _failure(facts, "no branch", told, fix="Add the branch or a default, deploy, then retry.")


def _unanswered(facts: RunFacts, fault: Fault) -> Sentence:
    waited = details(fault).get("waited_s")
    within = f" within {span(waited)}" if waited else " in time"
    told = parts(_where(facts), ": nobody answered its question", within, ".")
    return _failure(facts, "unanswered", told, fix="Retry it to ask again.")


def _aborted(facts: RunFacts, fault: Fault) -> Sentence:
    told = parts(_where(facts, "Stopped by its own code"), *_after(quote(fault.message)), ".")
    return _failure(facts, "aborted", told, tone="off")


def _unreadable(facts: RunFacts, fault: Fault) -> Sentence:
    told = parts("Failed, because one of its rows is damaged or missing: ", stop(code(fault.message)))
    return _failure(facts, "unreadable", told, fix="If other runs have it too, restore the database.")


ENDED: Final[Mapping[str, Callable[[RunFacts], Sentence]]] = MappingProxyType(
    {"succeeded": succeeded, "cancelled": cancelled, "expired": expired, "failed": failed}
)
"""The template of each status that a run ends with."""
_BY_CODE: Final[Mapping[str, tuple[str, Template]]] = MappingProxyType(
    {
        "STEP_TIMEOUT": ("", _timeout),
        "AGENT_IO_VALIDATION": ("pointer", _refused_output),
        "VALIDATION": ("by", _rejected),
        "PLUGIN": ("by", _rejected),
        "USAGE_LIMIT_EXCEEDED": ("budget", _budget),
        "ATTEMPT_LOST": ("", _poison),
        "LIMIT_REACHED": ("", _limit_reached),
        "NO_BRANCH": ("", _no_branch),
        "QUESTION_EXPIRED": ("", _unanswered),
        "PIPELINE_ABORT": ("", _aborted),
        "UNREADABLE": ("", _unreadable),
    }
)
_BY_TYPE: Final[Mapping[str, tuple[str, Template]]] = MappingProxyType(
    {
        "TimeoutError": ("file", _own_timeout),
        "ModuleNotFoundError": ("", _missing_module),
        "ImportError": ("", _missing_module),
    }
)
"""The template of each cause of a failure, with the detail that it needs: an older row, which lacks it, is shown as an ordinary error."""
