"""The module that `celery -A` is given: logging is configured before Flujo is attached, or after."""

import os

from celery import Celery, signals
from logged_shop import configure

from flujo_worker.celery_app.app import FlujoWorker


@signals.setup_logging.connect
def keep_logging(**_):
    """Keep Celery from configuring logging."""


app = Celery("logged", broker=os.environ["FLUJO_BROKER_URL"], backend=os.environ["FLUJO_BROKER_URL"])
if os.environ["ORDER"] == "before":
    configure()
FlujoWorker(app)
if os.environ["ORDER"] == "after":
    configure()
