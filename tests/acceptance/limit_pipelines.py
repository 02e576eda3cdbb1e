"""A step with a concurrency limit; apart from the others, because code from before it cannot import this."""

from __future__ import annotations

from acceptance_pipelines import ONCE, Visits, wait_at_gate

from flujo_client import Limit, Pipeline, Step

limited = Pipeline([Step("gate", wait_at_gate, config=ONCE, limit=Limit("gate", 1))], context_model=Visits)
