"""Why a live run makes no progress, and what would continue it. `hold_of` is pure; `hold` asks for the facts."""

from __future__ import annotations

from typing import Final, NamedTuple

from flujo_client.api.explanations import explain_run
from flujo_client.config.manager import Settings
from flujo_client.contract.records import RunRecord
from flujo_client.explain.sentence import Sentence
from flujo_client.gateway.effects import Operation

LONG_RETRY_S: Final = 5.0
"""A wait of fewer seconds before the next try is ordinary work."""
_MOVES: Final = ("queued", "lane", "lost")
"""Causes to wait that end soon: a worker will continue the run."""
_NO_WORKER: Final = ("no worker", "no workers")


class Hold(NamedTuple):
    """Why a run makes no progress, and what to do about it."""

    why: str
    way_out: str
    key: str = ""
    """Equal as long as the reason is the same."""
    needs_worker: bool = False
    """A worker that starts just now would change it."""

    def __str__(self) -> str:
        return f"{self.why}\n  → {self.way_out}"


def hold(settings: Settings, run: RunRecord) -> Operation[Hold | None]:
    """Ask what holds a run, if anything does."""
    return hold_of(run, (yield from explain_run(settings, run.id)), settings.services_named)


def hold_of(run: RunRecord, seen: Sentence, services: str = "") -> Hold | None:
    """Return what holds a run, of which this is the sentence; None where a worker will continue it.

    `services` are where it was looked for, as `Settings.services_named` says.
    """
    if seen.tone not in ("person", "stuck", "wait") or seen.cause in _MOVES or _is_short(seen):
        return None
    if seen.cause == "person" and run.status != "paused":  # other branches are at work
        return None
    why = seen.text[:1].lower() + seen.text[1:].removesuffix(".")
    way_out = seen.fix or f"`flujo lens trace {run.id}` shows its progress"
    if seen.cause == "person":
        way_out = f"`flujo approvals list --run {run.id}` shows the question"
    if seen.cause == "no workers" and services:
        why = f"{why} for {services}"
        way_out += " If your workers use others, give this process their FLUJO_DATABASE_URL and FLUJO_BROKER_URL."
    return Hold(why, way_out, seen.key, needs_worker=seen.cause in _NO_WORKER)


def _is_short(seen: Sentence) -> bool:
    if seen.cause not in ("backoff", "delayed", "sleep") or seen.until is None or seen.since is None:
        return False
    return (seen.until - seen.since).total_seconds() < LONG_RETRY_S
