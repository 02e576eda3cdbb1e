"""Explain runs: read the facts of any number of them with the same few queries, and put each into one sentence; say what holds a live one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from flujo_client.config.manager import Settings
from flujo_client.contract.records import RunRecord
from flujo_client.explain.facts import AttemptFacts, FleetFacts, RunFacts, RunRowFacts
from flujo_client.explain.sentence import Sentence
from flujo_client.explain.waiting import explain
from flujo_client.gateway import explain_requests as ask
from flujo_client.gateway.effects import Operation, query
from flujo_client.gateway.explain_requests import RunScope
from flujo_client.gateway.requests import not_found
from flujo_client.plan.plan import Plan

MOST_PLANS: Final = 256
STOPPED: Final = ("failed", "cancelled", "expired")
_known: dict[str, Plan] = {}
"""Plans by fingerprint, which is a digest of them: they never change."""
LONG_RETRY_S: Final = 5.0
"""Seconds up to which a wait is not reported: a backoff, or the time until a worker takes a message that `enqueue_many` has sent."""
_MOVES: Final = ("queued", "lane", "lost")
"""Causes to wait that end soon: a worker will continue the run."""
_NO_WORKER: Final = ("no worker", "no workers")


def explain_run(settings: Settings, run_id: str) -> Operation[Sentence]:
    """Explain one run; raises RunNotFound."""
    found = yield from explain_runs(settings, [run_id])
    if run_id not in found:
        raise not_found(run_id)
    return found[run_id]


def explain_runs(settings: Settings, run_ids: Collection[str]) -> Operation[dict[str, Sentence]]:
    """Explain runs, by their ids; those that do not exist are left out."""
    rows = (yield from query(ask.explained_runs(run_ids))) if run_ids else []
    facts = yield from _facts_of({each.id: each for each in rows}, settings.worker.control_queue)
    children = {each.child_of: each.id for each in rows}
    sentences: dict[str, Sentence] = {}

    def sentence_of(run_id: str) -> Sentence:
        if run_id not in sentences:
            child = children.get(run_id)
            known = replace(facts[run_id], child=None if child is None else (child, sentence_of(child)))
            sentences[run_id] = explain(known)
        return sentences[run_id]

    return {run_id: sentence_of(run_id) for run_id in run_ids if run_id in facts}


def _facts_of(runs: Mapping[str, RunRowFacts], control_queue: str) -> Operation[dict[str, RunFacts]]:
    alive = [each.id for each in runs.values() if each.ended_at is None]
    stopped = [each.id for each in runs.values() if each.status in STOPPED]
    queued = [each.id for each in runs.values() if each.status == "queued"]
    live = (yield from query(ask.live_attempts(alive))) if alive else []
    ended = (yield from query(ask.stopped_attempts(stopped))) if stopped else []
    gates = (yield from query(ask.gates(queued))) if queued else {}
    fan_outs = (yield from query(ask.fan_outs(alive))) if alive else {}
    keys = [each.key for each in live if each.status == "queued"]
    fleet = (yield from query(ask.fleet(keys, control_queue))) if alive else FleetFacts()
    waits = [(each.waits_for or "").partition(" ") for each in live]
    names = {name for guard, _, name in waits if guard == "limit"}
    limits = (yield from query(ask.limits(names))) if names else {}
    attempts = yield from _placed(runs, [*live, *ended])
    return {
        each.id: RunFacts(
            run=each,
            fleet=fleet,
            live=tuple(attempts[each.id]) if each.ended_at is None else (),
            failed=next(iter(attempts[each.id]), None) if each.ended_at is not None else None,
            gate=gates.get(each.id),
            fan_out=fan_outs.get(each.id),
            limits=limits,
        )
        for each in runs.values()
    }


def _placed(
    runs: Mapping[str, RunRowFacts], attempts: Iterable[AttemptFacts]
) -> Operation[Mapping[str, list[AttemptFacts]]]:
    """Group attempts by their runs, with what plans and containers say of their places."""
    fingerprints = {runs[each.run_id].fingerprint for each in attempts}
    if len(_known.keys() | fingerprints) > MOST_PLANS:
        _known.clear()
    if missing := fingerprints - _known.keys():
        _known.update((yield from query(ask.plans(missing))))
    scopes = {_container(each): each for each in attempts if "#" in each.address}
    around = (yield from query(ask.containers(list(scopes)))) if scopes else {}
    placed: defaultdict[str, list[AttemptFacts]] = defaultdict(list)
    for each in attempts:
        facts = replace(each, **around.get(_container(each), {}))
        placed[each.run_id].append(_optioned(facts, _known.get(runs[each.run_id].fingerprint)))
    return placed


def _container(attempt: AttemptFacts) -> RunScope:
    """Return the innermost container around an attempt that numbers its children; the root if there is none."""
    return RunScope(attempt.run_id, attempt.address.rpartition("#")[0])


def _optioned(attempt: AttemptFacts, plan: Plan | None) -> AttemptFacts:
    if plan is None:
        return attempt
    with suppress(KeyError):  # a step of the plan that the run had before
        node = plan.node(attempt.address, attempt.step)
        config = node.traits.get("config") or {}
        return replace(attempt, max_attempts=node.max_attempts, timeout_s=config.get("timeout_s"))
    return attempt


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
    return (seen.until - seen.since).total_seconds() <= LONG_RETRY_S
