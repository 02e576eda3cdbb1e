"""Your own Celery app, which carries pipelines too: `celery -A examples.shop_app worker -P threads`."""

from celery import Celery

from flujo_client import ConfigManager
from flujo_worker.app import FlujoWorker

settings = ConfigManager().settings()
app = Celery("shop", broker=settings.broker(), backend=settings.results())
app.conf.accept_content = ["json", "flujo"]

FlujoWorker(app, settings=settings)
