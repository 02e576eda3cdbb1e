"""Tasks of somebody's Celery app, which knows nothing of Flujo except for its last line; started by the plain celery command."""

import json
import os
import time
from datetime import timedelta
from pathlib import Path

from celery import Celery, Task, current_task, signals
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from pydantic import BaseModel

from flujo_worker.celery_app.app import FlujoWorker

broker = os.environ.get("FLUJO_BROKER_URL", "memory://")
app = Celery("shop", broker=broker, backend=broker, set_as_current=False)
app.conf.task_serializer = app.conf.result_serializer = "json"
CONNECTED = "SHOP_SIGNALS"


def note(task_id, *what):
    """One line of this attempt's story."""
    with (Path(os.environ["ACCEPTANCE_FOLDER"]) / "shop").open("a") as log:
        log.write(json.dumps([task_id, *what]) + "\n")


@app.task
def resize(path, width=100):
    return f"{path} at {width}"


@app.task(acks_late=True)
def late(given):
    return given


class Order(BaseModel):
    id: int
    price: float = 1.0


PYDANTIC = {"pydantic": True} if "pydantic" in Celery._task_from_fun.__code__.co_varnames else {}


@app.task(**PYDANTIC)
def double(order: Order) -> Order:
    return Order(id=order.id, price=2 * order.price)


@app.task(bind=True)
def look(self, given):
    request = self.request
    assert current_task.request.id == request.id
    return [request.id, request.retries, list(request.args), request.delivery_info["routing_key"], request.root_id]


@app.task(bind=True, max_retries=3, default_retry_delay=0.3)
def fetch(self, times):
    note(self.request.id, time.time())
    if self.request.retries < times:
        try:
            raise OSError("the net is down")
        except OSError as error:
            raise self.retry(exc=error) from error
    return self.request.retries


@app.task(bind=True)
def later(self, given):
    if self.request.retries == 0:
        note(self.request.id, time.time())
        self.retry(eta=app.now() + timedelta(seconds=0.5))
    return time.time()


@app.task(bind=True, max_retries=None)
def never(self, given):
    self.retry(countdown=0, max_retries=2)


@app.task(
    autoretry_for=(ValueError,), dont_autoretry_for=(UnicodeError,), retry_backoff=1, retry_jitter=False, max_retries=1
)
def flaky(word):
    note(current_task.request.id, time.time())
    if current_task.request.retries < 1:
        raise UnicodeError(word) if word == "bytes" else ValueError(word)
    return word


@app.task
def plain(word):
    raise ValueError(word)


@app.task(soft_time_limit=0.3, time_limit=5)
def soft(given):
    try:
        for _ in range(1000):
            time.sleep(0.01)
    except SoftTimeLimitExceeded:
        return "stopped softly"


@app.task(time_limit=0.5)
def hard(given):
    for _ in range(1000):
        time.sleep(0.01)


class Base(Task):
    made = 0

    def __call__(self, *args, **kwargs):
        note(self.request.id, "called", self.request.retries)
        self.made += 1
        return super().__call__(*args, **kwargs)

    def before_start(self, task_id, args, kwargs):
        note(task_id, "before_start", list(args))

    def on_success(self, retval, task_id, args, kwargs):
        note(task_id, "on_success", retval)

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        note(task_id, "on_failure", repr(exc), einfo.type.__name__)

    def on_retry(self, exc, task_id, args, kwargs, einfo):
        note(task_id, "on_retry", repr(exc))

    def after_return(self, status, retval, task_id, args, kwargs, einfo):
        note(task_id, "after_return", status)


@app.task(bind=True, base=Base, autoretry_for=(OSError,), retry_kwargs={"countdown": 0})
def based(self, word):
    assert self is app.tasks[self.name], "what a task keeps on itself is the same in each call"
    if word == "retry" and self.request.retries == 0:
        raise OSError(word)
    if word == "fail":
        raise ValueError(word)
    return word


@app.task
def total(price, *, count, discount=0):
    return price * count - discount


@app.task
def add(left, right):
    return left + right


@app.task(bind=True)
def slow_import(self, given):
    self.update_state(state="PROGRESS", meta={"done": 3})
    return given


@app.task(bind=True, autoretry_for=(Exception,))
def forbidden(self, what):
    if what == "replace":
        raise self.replace(resize.s("x"))
    if what == "add_to_chord":
        self.add_to_chord(resize.s("x"))
    if what == "retry":
        self.retry(args=["another"])
    raise Ignore("not today")


@app.task(bind=True)
def wait_for(self, gate):
    note(self.request.id, "began")
    while not Path(gate).exists():
        time.sleep(0.02)
    return gate


@app.task
def rejecting(given):
    raise Reject("not today")


@app.task(rate_limit="10/m")
def limited(given):
    return given


@app.task(serializer="pickle")
def pickled(given):
    return given


@app.task
def lazy(given):
    yield given


@app.task
async def asynchronous(given):
    return given


def heard(name):
    def hear(sender=None, **known):
        task_id = known.get("task_id") or getattr(known.get("request"), "id", None) or sender.request.id
        note(task_id, "signal", name, sender.name)

    return hear


if os.environ.get(CONNECTED):
    for signal in ("prerun", "postrun", "success", "failure", "retry"):
        getattr(signals, f"task_{signal}").connect(heard(signal), weak=False)

    @signals.task_success.connect(sender=resize)
    def of_one(sender=None, **_):
        note(sender.request.id, "of this task")


FlujoWorker(app)
