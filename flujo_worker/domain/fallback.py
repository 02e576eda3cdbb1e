"""A fallback: a step, and its replacement when it has failed permanently (ADR 20)."""

from __future__ import annotations

from dataclasses import replace

from flujo_client.contract.outcome import Fault
from flujo_client.pipeline.fallback import FALLBACK, PRIMARY
from flujo_client.plan.plan import Node
from flujo_worker.domain.draft import DecisionBuilder, Kind, ScopeState, Steps
from flujo_worker.domain.flow import enter as begin
from flujo_worker.domain.flow import finish, give_up, is_final, open_child, open_container

LIMIT = "limit"
"""The category of faults at a spending limit: a fallback would only spend more."""


def enter(draft: DecisionBuilder, scope: ScopeState, node: Node) -> Steps:
    yield from _begin(draft, open_container(draft, scope, node), PRIMARY)


def closed(draft: DecisionBuilder, container: ScopeState, node: Node, body: ScopeState) -> Steps:
    """Continue after a success, or fall back once. The result that a loop or a map retains when it fails is stored with the last failure."""
    if body.status == "succeeded":
        has_diagnostics = body.name == FALLBACK and node.rules["diagnostics"]
        feedback = f"Original error: {container.metadata['original_error']}" if has_diagnostics else None
        yield from finish(draft, container, body.output, body.context, feedback=feedback)
    elif body.name == PRIMARY and not is_final(body.fault) and not (body.fault and body.fault.category == LIMIT):
        yield from _fall_back(draft, container, body.fault)
    else:
        fault = body.fault if body.name == PRIMARY else _both(container, body.fault)
        yield from give_up(draft, container, fault, context=body.context)


def _fall_back(draft: DecisionBuilder, container: ScopeState, fault: Fault | None) -> Steps:
    """Begin the fallback with the input and context that the step had: nothing it wrote is there."""
    original_error = fault.feedback if fault else ""
    container.metadata.update(fallback_triggered=True, original_error=original_error)
    draft.emit("flujo.fallback.triggered", "warning", step=container.step, original_error=original_error)
    yield from _begin(draft, container, FALLBACK)


def _begin(draft: DecisionBuilder, container: ScopeState, body: str) -> Steps:
    place = (PRIMARY, FALLBACK).index(body)
    yield from begin(draft, open_child(draft, container, f"/{body}", body, place, container.output))


def _both(container: ScopeState, fault: Fault | None) -> Fault | None:
    """Make the fault of both when both failed; control flow passes unchanged."""
    if fault is None or is_final(fault):
        return fault
    original = container.metadata["original_error"]
    return replace(fault, feedback=f"Original error: {original}; Fallback error: {fault.feedback}")


KIND = Kind(enter=enter, closed=closed)
