"""Code inside an attempt finds everything by one context variable; who adds another one says here what its scope is."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCOPES = {
    "flujo_client/attempt_info.py": "an attempt, and one call of a durable one",
    "flujo_worker/durable/names.py": "a run of an agent in an attempt, or one of its calls: equal ones elsewhere are others",
    "flujo_worker/durable/journal.py": "one call of a durable attempt, for which those around it wait",
    "flujo_client/pipeline/compiled_text.py": "templates of blueprints, which conditions outside of attempts fill in too",
    "flujo_worker/agents/live_stream.py": "a streamed request to a model, whose unit is asked inside",
    "flujo_worker/agents/models.py": "a run of an agent, whose durability finds the model that is asked",
    "flujo_worker/agents/response_check.py": "one request to a model, whose HTTP client adds its response",
    "flujo_worker/agents/prompts/meter.py": "the rendering of one prompt",
    "flujo_worker/concurrency/call_context.py": "the delivery of a message, whose statements may wait for locks",
    "flujo_worker/concurrency/event_loop.py": "a call on the event loop",
    "flujo_worker/runtime/units_met.py": "a piece of code in an attempt, whose calls are counted by where their answers came from",
    "flujo_worker/runtime/faults.py": "a delivery of the engine for tests, which keeps the errors themselves",
    "flujo_worker/observe/log.py": "the lines that are collected, in attempts and in decisions",
}


def test_every_context_variable_has_a_scope_of_its_own():
    found = {
        str(path.relative_to(ROOT))
        for package in ("flujo_client", "flujo_worker")
        for path in (ROOT / package).rglob("*.py")
        for _ in re.findall(r"= ContextVar\(", path.read_text(encoding="utf-8"))
    }
    assert found == SCOPES.keys()
