"""Explain runs: read the facts of any number of them with the same few queries, and put each into one sentence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from flujo_client.explain.explain import explain
from flujo_client.explain.facts import AttemptFacts, FleetFacts, RunFacts
from flujo_client.explain.sentence import Sentence
from flujo_client.gateway import explain_requests as ask
from flujo_client.gateway.effects import Operation, query
from flujo_client.gateway.explain_requests import FleetState, FoundAttempt, RunScope, ToldRun
from flujo_client.gateway.requests import not_found
from flujo_client.plan.plan import Plan

MOST_PLANS: Final = 256
STOPPED: Final = ("failed", "cancelled", "expired")
_known: dict[str, Plan] = {}
"""Plans by fingerprint, which is a digest of them: they never change."""


def explain_run(run_id: str) -> Operation[Sentence]:
    """Explain one run; raises RunNotFound."""
    found = yield from explain_runs([run_id])
    if run_id not in found:
        raise not_found(run_id)
    return found[run_id]


def explain_runs(run_ids: Collection[str]) -> Operation[dict[str, Sentence]]:
    """Explain runs, by their ids; those that do not exist are left out."""
    told = (yield from query(ask.told_runs(run_ids))) if run_ids else []
    runs = {each.facts.id: each for each in told}
    facts = (yield from _facts_of(runs)) if runs else {}
    children = {each.parent: each.facts.id for each in told if each.parent is not None}
    sentences: dict[str, Sentence] = {}

    def tell(run_id: str) -> Sentence:
        if run_id not in sentences:
            child = children.get(run_id)
            known = replace(facts[run_id], child=None if child is None else (child, tell(child)))
            sentences[run_id] = explain(known)
        return sentences[run_id]

    return {run_id: tell(run_id) for run_id in run_ids if run_id in facts}


def _facts_of(runs: Mapping[str, ToldRun]) -> Operation[dict[str, RunFacts]]:
    alive = [run_id for run_id, each in runs.items() if each.facts.ended_at is None]
    stopped = [run_id for run_id, each in runs.items() if each.facts.status in STOPPED]
    queued = [run_id for run_id in alive if runs[run_id].facts.status == "queued"]
    live = (yield from query(ask.live_attempts(alive))) if alive else []
    ended = (yield from query(ask.stopped_attempts(stopped))) if stopped else []
    gates = (yield from query(ask.gates(queued))) if queued else {}
    fan_outs = (yield from query(ask.fan_outs(alive))) if alive else {}
    fleet = FleetState(FleetFacts(now=next(iter(runs.values())).now), {})
    if alive:
        fleet = yield from query(ask.fleet([each.facts.key for each in live if each.facts.status == "queued"]))
    waits = [(each.facts.waits_for or "").partition(" ") for each in live]
    names = {name for guard, _, name in waits if guard == "limit"}
    limits = (yield from query(ask.limits(names))) if names else {}
    live = [FoundAttempt(each.run, replace(each.facts, ahead=fleet.ahead.get(each.facts.key))) for each in live]
    attempts: defaultdict[str, list[AttemptFacts]] = defaultdict(list)
    for found in (yield from _placed(runs, [*live, *ended])):
        attempts[found.run].append(found.facts)
    return {
        run_id: RunFacts(
            run=each.facts,
            fleet=fleet.facts,
            live=tuple(attempts[run_id]) if each.facts.ended_at is None else (),
            failed=next(iter(attempts[run_id]), None) if each.facts.ended_at is not None else None,
            gate=gates.get(run_id),
            fan_out=fan_outs.get(run_id),
            limits=limits,
        )
        for run_id, each in runs.items()
    }


def _placed(runs: Mapping[str, ToldRun], attempts: Sequence[FoundAttempt]) -> Operation[list[FoundAttempt]]:
    """Add what plans and containers say of the places of attempts."""
    yield from _learn({runs[each.run].fingerprint for each in attempts})
    numbered = {place for each in attempts if (place := _container(each)) is not None}
    around = (yield from query(ask.containers(list(numbered)))) if numbered else {}
    placed = []
    for each in attempts:
        place, plan = _container(each), _known.get(runs[each.run].fingerprint)
        facts = replace(_optioned(each.facts, plan), **around.get(place, {})) if place else _optioned(each.facts, plan)
        placed.append(FoundAttempt(each.run, facts))
    return placed


def _learn(fingerprints: set[str]) -> Operation[None]:
    if len(_known.keys() | fingerprints) > MOST_PLANS:
        _known.clear()
    if missing := fingerprints - _known.keys():
        _known.update((yield from query(ask.plans(missing))))


def _container(attempt: FoundAttempt) -> RunScope | None:
    """Return the innermost container around an attempt that numbers its children."""
    container, numbered, _ = attempt.facts.address.rpartition("#")
    return RunScope(attempt.run, container) if numbered else None


def _optioned(attempt: AttemptFacts, plan: Plan | None) -> AttemptFacts:
    if plan is None:
        return attempt
    with suppress(KeyError):  # a step of the plan that the run had before
        node = plan.node(attempt.address, attempt.step)
        config = node.traits.get("config") or {}
        return replace(attempt, max_attempts=node.max_attempts, timeout_s=config.get("timeout_s"))
    return attempt
