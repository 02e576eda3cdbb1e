"""A step with a concurrency limit; apart from the others, because code from before it cannot import this."""

from __future__ import annotations

from acceptance_pipelines import ONCE, Visits, wait_at_gate

from flujo_client import Limit, Pipeline, Step

limited, replacing, dropping = (
    Pipeline([Step("gate", wait_at_gate, config=ONCE, limit=limit)], context_model=Visits)
    for limit in (
        Limit("gate", 1),
        Limit("cancel_oldest", 1, on_full="cancel_oldest"),
        Limit("drop", 1, on_full="drop"),
    )
)
