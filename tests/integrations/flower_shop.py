"""Pipelines of someone who watches their workers in Flower."""

import time
from pathlib import Path

from flujo_client import Pipeline, Step, StepConfig


def price(order):
    return len(order)


def charge(order):
    raise ConnectionError("the bank is closed")


def wait(opens):
    while not Path(opens).exists():
        time.sleep(0.05)


waiting = Pipeline([Step("wait", wait)])
orders = Pipeline([Step("price", price), Step("charge", charge, config=StepConfig(max_retries=1))])
