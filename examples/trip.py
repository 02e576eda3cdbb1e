"""The tutorial's fan-outs: questions asked at the same time, each on a copy of the context, and one answer made of all."""

from pydantic import BaseModel

from flujo_client import Pipeline, Step, StepResult
from flujo_client.errors import NonRetryableError


class Trip(BaseModel):
    city: str = ""
    cities: list[str] = []
    train: float = 0.0
    hotel: float = 0.0
    asked: int = 0
    remarks: list[str] = []


def choose(city: str) -> str:
    return city.title()


async def ask_railway(city: str, *, context: Trip) -> float:
    if city == "Atlantis":
        raise NonRetryableError(f"no train to {city}")
    context.asked += 1
    context.remarks.append(f"a train to {city} every hour")
    return 80.0


async def find_hotel(city: str, *, context: Trip) -> str:
    context.asked += 1
    context.remarks.append("breakfast is included")
    return f"Hotel {city}"


async def price_of(hotel: str) -> float:
    return 10.0 * len(hotel)


def total(prices: dict[str, float]) -> float:
    return sum(prices.values())


hotel = Pipeline([Step("find", find_hotel), Step("price", price_of)])

pipeline = Pipeline(
    [
        Step("choose", choose, sink_to="city"),
        Step.parallel("ask", {"train": Step("railway", ask_railway), "hotel": hotel}),
        Step("total", total),
    ],
    context_model=Trip,
)


def plan(cities: list[str]) -> list[str]:
    return [city.title() for city in cities]


def cheapest(prices: list[float | StepResult]) -> float:
    return min(price for price in prices if isinstance(price, float))


tour = Pipeline(
    [
        Step("plan", plan, sink_to="cities"),
        Step.map_over(
            "each city",
            Step("railway", ask_railway),
            iterable_input="cities",
            max_concurrency=4,
            on_branch_failure="ignore",
        ),
        Step("cheapest", cheapest),
    ],
    context_model=Trip,
)
