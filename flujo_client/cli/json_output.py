"""The JSON that commands print. The keys are a contract with programs: more may be added, none changes. `docs/reference/cli.md` lists them. Pure.

Times are ISO 8601 in UTC, durations in seconds; what has not happened yet is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from flujo_client.contract.outcome import Fault
from flujo_client.contract.records import BudgetRecord, EventRecord, RunRecord
from flujo_client.contract.run_filter import RunStats
from flujo_client.contract.trace import TraceNode, spent
from flujo_client.explain.sentence import Sentence

_RUN: Final = (
    *("id", "pipeline", "version", "reference", "fingerprint", "status", "reason", "tenant", "metadata"),
    *("created_at", "started_at", "ended_at", "deadline_at", "cancel_requested_at", "forked_from", "from_step"),
    *("retried_as", "duration_s", "tokens", "cost_usd", "parent", "background", "retry_of", "waits_for", "unreadable"),
)
_STATS: Final = (
    *("since", "until", "runs", "by_status", "retried", "success_rate"),
    *("duration_p50_s", "duration_p95_s", "tokens", "cost_usd"),
)
_ERROR: Final = ("type", "message", "code", "category", "suggestion", "feedback", "traceback", "details")


def run_shape(run: RunRecord) -> dict[str, Any]:
    """Return one run, as `lens list` shows it."""
    duration_s = None if run.ended_at is None else (run.ended_at - run.created_at).total_seconds()
    own = {"pipeline": run.name, "parent": run.parent_run, "background": run.is_background, "duration_s": duration_s}
    return {name: own[name] if name in own else getattr(run, name) for name in _RUN}


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
    own = {"name": node.name, "kind": node.kind, "status": node.status, "attempts": node.attributes.get("attempts", 1)}
    sums = {"tokens": spent(node, "tokens"), "cost_usd": spent(node, "cost_usd")}
    return {**own, "duration_s": node.duration_s, **sums, "feedback": feedback_of(node)}


def span_shapes(trace: TraceNode) -> list[dict[str, Any]]:
    """List the places of a trace, each after the one it is in. `path` is written as addresses and keys are."""
    return [{"path": path, "offset_s": node.offset_s, **step_shape(node)} for path, node in places(trace)]


def stats_shape(stats: RunStats) -> dict[str, Any]:
    """Return what `lens stats` shows."""
    names = {"duration_p50_s": "p50_s", "duration_p95_s": "p95_s"}
    shape = {key: getattr(stats, names.get(key, key)) for key in _STATS}
    return {**shape, "failing_steps": [asdict(each) for each in stats.failing]}


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
        if child.kind == "attempt":
            path = f"{above}:{child.name.rpartition(' ')[2]}"
        elif child.name.startswith(f"{node.name}#"):  # an iteration is named after its loop
            path = above + child.name.removeprefix(node.name)
        else:
            path = f"{above}/{child.name}" if above else child.name
        inner = places(child, path, inner_first=inner_first)
        yield from (*inner, (path, child)) if inner_first else ((path, child), *inner)


def _error(fault: Fault | None) -> dict[str, Any] | None:
    names = {name: "type_name" if name == "type" else name for name in _ERROR}
    return None if fault is None else {name: getattr(fault, attribute) for name, attribute in names.items()}
