"""Pipelines of someone who watches their workers in Flower."""

from flujo_client import Pipeline, Step, StepConfig


def price(order):
    return len(order)


def charge(order):
    raise ConnectionError("the bank is closed")


orders = Pipeline([Step("price", price), Step("charge", charge, config=StepConfig(max_retries=1))])
