"""Tasks, and pipelines of them, of someone who watches both with Sentry and OpenTelemetry."""

import json
import os
from pathlib import Path

import sentry_sdk
from celery import Celery

from flujo_client import ConfigManager, Pipeline, Step
from flujo_worker.celery_app.app import FlujoWorker

if dsn := os.environ.get("SENTRY_DSN"):  # workers have it, the test's own process has not
    sentry_sdk.init(dsn=dsn, traces_sample_rate=1.0)

settings = ConfigManager().settings() if "FLUJO_BROKER_URL" in os.environ else None
broker = settings.broker() if settings else "memory://"
app = Celery("shop", broker=broker, backend=broker if settings else None, set_as_current=False)


@app.task(name="shop.price")
def price(order):
    return len(order)


@app.task(name="shop.charge", autoretry_for=(ConnectionError,), retry_kwargs={"max_retries": 1, "countdown": 0})
def charge(order):
    raise ConnectionError("the bank is closed")


def note(order):
    return order


orders = Pipeline([Step("note", note), Step.of(price), Step.of(charge)])


def attached():
    """The app, whose workers write their spans to a file."""
    FlujoWorker(app, settings=settings)
    if spans := os.environ.get("SPANS"):
        _write_spans(spans)
    return app


def _write_spans(path):
    from opentelemetry import trace
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    class ToFile(SpanExporter):
        def export(self, spans):
            with Path(path).open("a") as file:
                file.writelines(
                    json.dumps([span.name, span.status.status_code.name, f"{span.context.trace_id:032x}"]) + "\n"
                    for span in spans
                )
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ToFile()))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()
