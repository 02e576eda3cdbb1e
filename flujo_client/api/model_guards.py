"""The guards of models as operators see them: circuit breakers and rate limits, with the attempts that wait for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flujo_client.config.model_guards import FleetGuards
from flujo_client.config.models import Section
from flujo_client.contract.limits import Guard, GuardRow
from flujo_client.gateway.effects import Operation, query
from flujo_client.gateway.operator_requests import WaitingForModel, guard_rows, open_breakers, waiting_for_models


def breakers() -> Operation[list[dict[str, Any]]]:
    """List the models whose breaker is set, open or waited for, as `flujo breakers list --json` prints them."""
    fleet = yield from _read("breaker")
    open_ones = {each.model: each for each in (yield from query(open_breakers()))}

    def shape(model: str) -> dict[str, Any]:
        settings, found = fleet.guards.breaker(model), open_ones.get(model)
        state, since_s = (found.state, found.since_s) if found else ("closed", None)
        if not settings.enabled:
            state, since_s = "disabled", None
        return {"model": model, "state": state, "since_s": since_s, **fleet.facts(model, settings)}

    return [shape(model) for model in sorted({*fleet.rows, *open_ones, *fleet.waiting})]


def rates() -> Operation[list[dict[str, Any]]]:
    """List the models that have a rate limit or are waited for, as `flujo rates list --json` prints them."""
    fleet = yield from _read("rate")
    limits = {model: fleet.guards.limit(model) for model in sorted({*fleet.rows, *fleet.waiting})}
    return [
        {"model": model, **fleet.facts(model, None if limit is None else limit.settings)}
        for model, limit in limits.items()
    ]


class _Fleet(NamedTuple):
    """The settings of all models for one guard: resolved, the rows that set something, and the attempts that wait."""

    guards: FleetGuards
    rows: Mapping[str, GuardRow]
    waiting: Mapping[str, WaitingForModel]

    def facts(self, model: str, settings: Section | None) -> dict[str, Any]:
        waits, row = self.waiting.get(model), self.rows.get(model)
        return {
            "waiting": waits.waiting if waits else 0,
            "next_s": waits.next_s if waits else None,
            "settings": None if settings is None else settings.model_dump(mode="json"),
            "edits": row.edits if row else None,
        }


def _read(guard: Guard) -> Operation[_Fleet]:
    rows, waiting = (yield from query(guard_rows())), (yield from query(waiting_for_models()))
    return _Fleet(
        FleetGuards(rows),
        {row.model: row for row in rows if row.guard == guard and row.settings is not None},
        {each.model: each for each in waiting if each.guard == guard},
    )
