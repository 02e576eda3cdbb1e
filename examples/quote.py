"""Checks, waits and a typed answer: what a step can be told besides its agent."""

from pydantic import BaseModel

from flujo_client import Backoff, Pipeline, step
from flujo_client.errors import NonRetryableError


class Quote(BaseModel):
    amount: float = 0.0
    currency: str = "EUR"


class Offer(BaseModel):
    quote: Quote = Quote()
    letter: str = ""


def is_positive(quote: Quote) -> tuple[bool, str]:
    return quote.amount > 0, f"an offer of {quote.amount} is none"


@step(validators=[is_positive], sink_to="quote", max_retries=3, backoff=Backoff(base_s=0.5, cap_s=10))
def price(item: str) -> Quote:
    prices = {"bee": 2.5, "hive": 120.0, "sting": 0.0}
    if item not in prices:
        raise NonRetryableError(f"no price for {item}")
    return Quote(amount=prices[item])


@step(updates_context=True, timeout_s=5)
async def write(quote: Quote, *, context: Offer) -> dict[str, str]:
    return {"letter": f"We offer it for {context.quote.amount:.2f} {quote.currency}."}


pipeline = Pipeline([price, write], name="offers", context_model=Offer)
