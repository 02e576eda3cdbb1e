"""The tutorial's untidy model: what it says about an invoice, and three ways to take it."""

from pydantic import BaseModel

from flujo_client import Pipeline, Step
from flujo_worker.agents import make_agent_async
from flujo_worker.agents.scripted import scripted_model


class Invoice(BaseModel):
    number: str
    total: float
    paid: bool


UNTIDY = (
    "<think>The total is 80.50, I think.</think>Here is the invoice:\n"
    '```json\n{"number": "R-17", "total": "80.50", "paid": true,}\n```\n'
    "Do you need anything else?"
)
TIDY = '{"number": "R-17", "total": 80.5, "paid": true}'


def say(prompt: str) -> str:
    return TIDY if "was not accepted" in prompt else UNTIDY


clerk = make_agent_async(scripted_model(say, name="untidy"), "Read the invoice.", output_type=Invoice, name="clerk")

plain = Pipeline([Step("read", clerk)])

repaired = Pipeline([Step("read", clerk, processing={"aop": "minimal"})])

converted = Pipeline(
    [Step("read", clerk, processing={"aop": "minimal", "coercion": {"allow": {"number": ["str->float"]}}})]
)
