"""Someone's Celery app that carries pipelines too; started by the plain celery command."""

import os

from celery import Celery

from flujo_worker.celery_app.app import FlujoWorker

app = Celery("shop", broker=os.environ["FLUJO_BROKER_URL"], backend=os.environ["FLUJO_BROKER_URL"])


@app.task(name="shop.add")
def add(left, right):
    return left + right


FlujoWorker(app)
