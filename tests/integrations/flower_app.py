"""The module that `celery -A` is given."""

from celery import Celery

from flujo_client import ConfigManager
from flujo_worker.celery_app.app import FlujoWorker

settings = ConfigManager().settings()
app = Celery("shop", broker=settings.broker(), backend=settings.results())
app.conf.accept_content = ["json", "flujo"]
FlujoWorker(app, settings=settings)
