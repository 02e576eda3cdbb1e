"""The module that `celery -A` is given, of a project on gevent or eventlet. PATCH: where it patches Python itself, as many do."""

import asyncio
import os

if os.environ.get("PATCH") == "before":
    from gevent import monkey

    monkey.patch_all()

from celery import Celery

from flujo_client import ConfigManager
from flujo_worker.celery_app.app import FlujoWorker

if os.environ.get("PATCH") == "after":
    from gevent import monkey

    monkey.patch_all()

settings = ConfigManager().settings()
app = Celery("shop", broker=settings.broker(), backend=settings.results())
app.conf.accept_content = ["json", "flujo"]
app.conf.worker_pool = os.environ.get("POOL", "prefork")
FlujoWorker(app, settings=settings)


@app.task
def running_loop():
    """A task of the project, where Django would refuse its ORM if an event loop ran."""
    try:
        return repr(asyncio.get_running_loop())
    except RuntimeError:
        return None
