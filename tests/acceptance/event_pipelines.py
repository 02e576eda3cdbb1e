"""Pipelines that wait for events, for the acceptance tests' workers."""

from typing import Any

from acceptance_pipelines import begin
from pydantic import BaseModel

from flujo_client import Pipeline, Step, WaitForEvent


class Payment(BaseModel):
    """What is sent."""

    amount: int


def start(value: Any) -> Any:
    begin()
    return value


def finish(payment: Payment) -> int:
    begin()
    return payment.amount


pays = Pipeline(
    [Step("start", start), WaitForEvent("pay", event="paid", input_schema=Payment), Step("finish", finish)], name="pays"
)
