"""Explain runs: read the facts of any number of them with the same few queries, and put each into one sentence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from flujo_client.config.manager import Settings
from flujo_client.explain.explain import explain
from flujo_client.explain.facts import AttemptFacts, FleetFacts, RunFacts, RunRowFacts
from flujo_client.explain.sentence import Sentence
from flujo_client.gateway import explain_requests as ask
from flujo_client.gateway.effects import Operation, query
from flujo_client.gateway.explain_requests import RunScope
from flujo_client.gateway.requests import not_found
from flujo_client.plan.plan import Plan

MOST_PLANS: Final = 256
STOPPED: Final = ("failed", "cancelled", "expired")
_known: dict[str, Plan] = {}
"""Plans by fingerprint, which is a digest of them: they never change."""


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
    yield from _learn({runs[each.run_id].fingerprint for each in attempts})
    scopes = {_container(each): each for each in attempts if "#" in each.address}
    around = (yield from query(ask.containers(list(scopes)))) if scopes else {}
    placed: defaultdict[str, list[AttemptFacts]] = defaultdict(list)
    for each in attempts:
        facts = replace(each, **around.get(_container(each), {}))
        placed[each.run_id].append(_optioned(facts, _known.get(runs[each.run_id].fingerprint)))
    return placed


def _learn(fingerprints: set[str]) -> Operation[None]:
    if len(_known.keys() | fingerprints) > MOST_PLANS:
        _known.clear()
    if missing := fingerprints - _known.keys():
        _known.update((yield from query(ask.plans(missing))))


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
