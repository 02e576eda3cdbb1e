"""Explain a run: choose the template for its facts. Pure."""

from __future__ import annotations

from flujo_client.explain.ended import ENDED
from flujo_client.explain.facts import RunFacts
from flujo_client.explain.sentence import Sentence
from flujo_client.explain.waiting import cancelling, gated, live, parked


def explain(facts: RunFacts) -> Sentence:
    """Say where a run stopped, why, and what moves it."""
    run = facts.run
    if run.status in ENDED:
        return ENDED[run.status](facts)
    if run.cancel_requested_at is not None:
        return cancelling(facts)
    if run.status == "parked":
        return parked(facts)
    return live(facts) if facts.gate is None else gated(facts, facts.gate)
