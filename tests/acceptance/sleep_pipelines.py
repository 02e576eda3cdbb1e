"""Pipelines that sleep, for the acceptance tests' workers. Values are trails, as in `acceptance_pipelines`."""

from datetime import UTC, datetime, timedelta
from typing import Any

from acceptance_pipelines import ONCE, echo, visit

from flujo_client import Pipeline, Sleep, Step

NAP_S = 4.0


def soon(_trail: Any) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=NAP_S)


def around(nap: Sleep) -> Pipeline:
    return Pipeline([Step("before", visit, config=ONCE), nap, Step("after", visit, config=ONCE)], name="sleeper")


for_seconds = around(Sleep("nap", NAP_S))
until_then = around(Sleep("nap", until=soon))
until_input = Pipeline([Sleep("nap", until=echo)], name="sleeper")
