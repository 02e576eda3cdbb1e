"""What `--json` prints. The keys are a contract with programs: they may grow, they do not change. Pure.

    run      id, pipeline, version, reference, fingerprint, status, reason, tenant, metadata, created_at, started_at, ended_at,
             deadline_at, cancel_requested_at, forked_from, from_step, retried_as, duration_s, tokens, cost_usd, parent, background,
             retry_of, waits_for, unreadable; from `run`, `lens list` and `lens show` also explanation
    explanation  cause, tone, text, fix, place, key, since, until, acts: where the run stopped or what it waits for, see explain.md
    details  a run with budgets, error, steps, and on request input, output, context, step_outputs (by step), logs (lines)
    budget   scope, limit_usd, limit_tokens, spent_usd, spent_tokens, reserved_usd, reserved_tokens, overrun_usd, overrun_tokens
    step     name, kind, status, attempts, duration_s, tokens, cost_usd, feedback
    error    type, message, code, category, suggestion, feedback, traceback; or null
    trace    name, kind, status, offset_s, duration_s, attributes, events, children; an event has name, level, offset_s, data
    span     path, offset_s, and the keys of a step
    stats    since, until, runs, by_status, retried, success_rate, duration_p50_s, duration_p95_s, tokens, cost_usd, failing_steps
             (pipeline, step, failed, attempts, runs)
    event    id, at, run, name, level, attempt, data, cursor

Times are ISO 8601 in UTC, durations in seconds; what has not happened yet is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from flujo_client.contract.outcome import Fault
from flujo_client.contract.records import BudgetRecord, EventRecord, RunRecord
from flujo_client.contract.run_filter import RunStats
from flujo_client.contract.trace import TraceNode, spent
from flujo_client.explain.sentence import Sentence


def run_shape(run: RunRecord) -> dict[str, Any]:
    """Return one run, as `lens list` shows it."""
    return {
        "id": run.id,
        "pipeline": run.name,
        "version": run.version,
        "reference": run.reference,
        "fingerprint": run.fingerprint,
        "status": run.status,
        "reason": run.reason,
        "tenant": run.tenant,
        "metadata": run.metadata,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "deadline_at": run.deadline_at,
        "cancel_requested_at": run.cancel_requested_at,
        "forked_from": run.forked_from,
        "from_step": run.from_step,
        "retried_as": run.retried_as,
        "duration_s": None if run.ended_at is None else (run.ended_at - run.created_at).total_seconds(),
        "tokens": run.tokens,
        "cost_usd": run.cost_usd,
        "parent": run.parent_run,
        "background": run.is_background,
        "retry_of": run.retry_of,
        "waits_for": run.waits_for,
        "unreadable": run.unreadable,
    }


def details_shape(
    run: RunRecord, trace: TraceNode, budgets: Sequence[BudgetRecord] = (), **values: Any
) -> dict[str, Any]:
    """Return one run, as `run` and `lens show` show it; `values` are the input, output and context that were asked for."""
    own = {"budgets": [asdict(each) for each in budgets], "error": _error(run.error)}
    return {**run_shape(run), **own, "steps": [step_shape(node) for node in trace.children], **values}


def explained(shape: dict[str, Any], sentence: Sentence | None) -> dict[str, Any]:
    """Add the sentence about a run; null if the run was deleted meanwhile."""
    return {**shape, "explanation": None if sentence is None else sentence.to_tree()}


def step_shape(node: TraceNode) -> dict[str, Any]:
    """Return one step of a trace, over all its attempts; or one container, over all that is in it."""
    return {
        "name": node.name,
        "kind": node.kind,
        "status": node.status,
        "attempts": node.attributes.get("attempts", 1),
        "duration_s": node.duration_s,
        "tokens": spent(node, "tokens"),
        "cost_usd": spent(node, "cost_usd"),
        "feedback": feedback_of(node),
    }


def span_shapes(trace: TraceNode) -> list[dict[str, Any]]:
    """List the places of a trace, each after the one it is in. `path` is written as addresses and keys are."""
    return [{"path": path, "offset_s": node.offset_s, **step_shape(node)} for path, node in places(trace)]


def stats_shape(stats: RunStats) -> dict[str, Any]:
    """Return what `lens stats` shows."""
    return {
        "since": stats.since,
        "until": stats.until,
        "runs": stats.runs,
        "by_status": dict(stats.by_status),
        "retried": stats.retried,
        "success_rate": stats.success_rate,
        "duration_p50_s": stats.p50_s,
        "duration_p95_s": stats.p95_s,
        "tokens": stats.tokens,
        "cost_usd": stats.cost_usd,
        "failing_steps": [asdict(each) for each in stats.failing],
    }


def event_shape(event: EventRecord) -> dict[str, Any]:
    """Return one event, as `lens watch` shows it."""
    shape = asdict(event)
    return {"id": shape.pop("id"), "at": shape.pop("at"), "run": shape.pop("run_id"), **shape}


def feedback_of(node: TraceNode) -> str | None:
    """Return the feedback of a place; of a step, that of its last attempt."""
    where = node.children[-1] if node.kind == "step" else node
    feedback: str | None = where.attributes.get("feedback")
    return feedback


def tracebacks(trace: TraceNode) -> dict[str, str]:
    """Map the path of the first place that raised each traceback of a trace to it; attempts that raise the same have one."""
    first: dict[str, str] = {}
    for path, node in places(trace, inner_first=True):  # containers repeat what was raised in them
        first.setdefault(node.attributes.get("traceback", ""), path)
    return {path: traceback for traceback, path in first.items() if traceback}


def places(node: TraceNode, above: str = "", *, inner_first: bool = False) -> Iterator[tuple[str, TraceNode]]:
    """Walk through the places inside one, with their paths: each before those inside it, or after them."""
    for child in node.children:
        path = _path_of(node, child, above)
        if not inner_first:
            yield path, child
        yield from places(child, path, inner_first=inner_first)
        if inner_first:
            yield path, child


def _path_of(node: TraceNode, child: TraceNode, above: str) -> str:
    """Return the path of a child, whose parent is at `above`."""
    if child.kind == "attempt":
        return f"{above}:{child.name.rpartition(' ')[2]}"
    if child.name.startswith(f"{node.name}#"):  # an iteration is named after its loop
        return above + child.name.removeprefix(node.name)
    return f"{above}/{child.name}" if above else child.name


def _error(fault: Fault | None) -> dict[str, Any] | None:
    if fault is None:
        return None
    return {
        "type": fault.type_name,
        "message": fault.message,
        "code": fault.code,
        "category": fault.category,
        "suggestion": fault.suggestion,
        "feedback": fault.feedback,
        "traceback": fault.traceback,
        "details": dict(fault.details),
    }
