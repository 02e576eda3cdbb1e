"""An agent whose own spans go on with its caller's trace."""

from opentelemetry import propagate, trace

from flujo_client import Pipeline, Step, current_attempt

tracer = trace.get_tracer("acme")


def look_up(order: str) -> str:
    attempt = current_attempt()
    headers = {"traceparent": attempt.trace_parent} if attempt and attempt.trace_parent else {}
    with tracer.start_as_current_span("look_up", context=propagate.extract(headers)) as span:
        span.set_attribute("order", order)
        return f"{order}: on its way"


pipeline = Pipeline([Step("look_up", look_up)], name="tracing")
