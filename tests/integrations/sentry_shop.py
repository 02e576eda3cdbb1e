"""Pipelines of someone who has set up Sentry, and their Celery app."""

import os

import sentry_sdk
from celery import Celery

from flujo_client import ConfigManager, Pipeline, Step, StepConfig
from flujo_client.pipeline.loop import LoopStep
from flujo_worker.celery_app.app import FlujoWorker

if dsn := os.environ.get("SENTRY_DSN"):  # workers have it, the test's own process has not
    sentry_sdk.init(dsn=dsn)


class OutOfStock(Exception):
    pass


def look_up(shelf):
    raise OutOfStock(f"nothing on {shelf}")


def order(given):
    look_up(given)


def is_done(output, _context):
    raise OutOfStock(f"no end of {output}")


TWICE = StepConfig(max_retries=1)
failing = Pipeline([Step("order", order, config=TWICE)])
branches = Pipeline(
    [Step.parallel("all", {"bad": Step("order", order, config=TWICE), "fine": Step("fine", lambda given: given)})]
)
endless = Pipeline(
    [
        LoopStep(
            "again", loop_body_pipeline=Pipeline([Step("same", lambda given: given)]), exit_condition_callable=is_done
        )
    ]
)


def attached() -> Celery:
    settings = ConfigManager().settings()
    app = Celery("shop", broker=settings.broker(), backend=settings.results())
    FlujoWorker(app, settings=settings)
    return app
