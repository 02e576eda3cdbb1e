"""A step with another one to fall back on."""

from flujo_client import Pipeline, Step
from flujo_client.errors import NonRetryableError

STATIONS = {"bern": "rain from noon"}


async def ask_station(city: str) -> str:
    if city not in STATIONS:
        raise NonRetryableError(f"no station in {city}")
    return f"{city}: {STATIONS[city]}"


def look_up(city: str) -> str:
    return f"{city}: as in other years"


almanac = Step("almanac", look_up)

pipeline = Pipeline([Step("forecast", ask_station, fallback_step=almanac)])
