"""The options that a run's steps are performed with, for its trace: a step's own over the project's at the time it was enqueued, over what is built in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

from flujo_client.config.run_settings import RunSettings, settings_of
from flujo_client.contract.processing import resolve
from flujo_client.contract.records import AttemptRecord, RunRecord
from flujo_client.errors import BlueprintError
from flujo_client.plan.plan import Node, Plan


def options_of_attempts(plan: Plan, run: RunRecord, attempts: Sequence[AttemptRecord]) -> dict[str, dict[str, Any]]:
    """Return the options of each attempt at an agent step, by its key; none for what this client cannot read."""
    try:
        settings = settings_of(run.settings, RunSettings())
    except ValueError:  # a newer client's
        return {}
    found = {}
    for row in attempts:
        with suppress(KeyError):  # a step of the plan that the run had before
            if row.kind == "step" and (node := plan.node(row.address, row.step)).spec.performs:
                found[row.key] = _options(node, run.aros, settings)
    return found


def _options(node: Node, aros: Mapping[str, Any] | None, settings: RunSettings) -> dict[str, Any]:
    given = dict(node.traits.get("config") or {})
    agent = node.traits.get("agent")
    model = agent.get("model") if isinstance(agent, Mapping) else None
    return {
        "max_attempts": node.max_attempts,
        "backoff": node.backoff.model_dump() if node.backoff is not None else settings.retry.model_dump(),
        "timeout_s": settings.agents.agent_timeout_s,
        **({"model": model} if isinstance(model, str) else {}),
        **given,
        "aros": _reading(node.traits.get("processing"), aros),
    }


def _reading(block: Mapping[str, Any] | None, table: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return how the output is read; None where AROS does not act, or the block is one that only newer code reads."""
    try:
        known = resolve(block, table)
    except BlueprintError:
        return None
    if known is None:
        return None
    return _scalars(known) | _scalars(known.parsing) | {"precheck": _scalars(known.precheck)}


def _scalars(settings: Any) -> dict[str, Any]:
    given = {each.name: getattr(settings, each.name) for each in fields(settings)}
    return {name: value for name, value in given.items() if isinstance(value, str | bool | int | float)}
