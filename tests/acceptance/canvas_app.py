"""Someone's Celery app whose canvases hold pipelines, and pipelines for them. Every call leaves a line in the site's folder."""

import os
from pathlib import Path

from celery import Celery, chain, group
from pydantic import BaseModel

from flujo_client import HumanInTheLoopStep, Pipeline, Step
from flujo_worker.celery_app.app import FlujoWorker

BROKER = os.environ["FLUJO_BROKER_URL"]
app = Celery("canvases", broker=BROKER, backend=BROKER)
app.conf.broker_transport_options = {"visibility_timeout": 3, "unacked_restore_interval": 1}
app.conf.task_serializer = app.conf.result_serializer = SERIALIZER = os.environ.get("CANVAS_SERIALIZER", "json")
app.conf.accept_content = [SERIALIZER]
FlujoWorker(app)


def note(line):
    with (Path(os.environ["ACCEPTANCE_FOLDER"]) / "canvas").open("a") as file:
        file.write(f"{line}\n")


@app.task(name="canvas.add")
def add(x, y):
    note(f"add {x} {y}")
    return x + y


@app.task(name="canvas.mul")
def mul(x, y):
    return x * y


@app.task(name="canvas.total")
def total(xs):
    return sum(xs)


@app.task(name="canvas.const")
def const():
    return 7


@app.task(name="canvas.triple")
def triple(x, middle=0, last=0):
    return [x, middle, last]


def of_order(number, parts):
    """A canvas as teams build them: for each call, of its arguments."""
    return chain(add.s(number, 1), group(mul.s(part) for part in parts), total.s(), triple.s(last=number))


@app.task(name="canvas.regret")
def regret(request, error, traceback):
    note(f"regret {type(error).__name__} {error}")


@app.task(name="canvas.mourn")
def mourn(uuid):
    note("mourn")


class Pair(BaseModel):
    left: int
    right: int


def fail(_):
    raise ValueError("no such order")


def twice(x):
    return 2 * x


def more(x):
    return x + 1


double = Pipeline([Step("double", twice), Step("more", more)], name="double")
asking = Pipeline([HumanInTheLoopStep("ask")], name="asking")
failing = Pipeline([Step("fail", fail)], name="failing")
pair = Pipeline([Step("pair", lambda x: Pair(left=x, right=x + 1))], name="pair")
entire = Pipeline([Step("entire", lambda x: x)], name="entire")

app.add_periodic_task(1.0, double.si(50), name="every second")
