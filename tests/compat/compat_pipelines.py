"""Pipelines of the matrix that no acceptance test has. Workers import them."""

from acceptance_pipelines import ONCE, wait_at_gate
from celery import Celery

from flujo_client import Pipeline, Step


async def noop(value: int) -> int:
    return value


def fan_out(name: str, branch: Pipeline, branches: int) -> Pipeline:
    return Pipeline([Step.parallel(name, {f"{name}{number}": branch for number in range(branches)})])


def count(outputs: dict) -> int:
    return sum(map(count, outputs.values())) if isinstance(outputs, dict) else 1


flat = Pipeline([*fan_out("fan", Pipeline([Step("one", noop), Step("two", noop)]), 6).steps, Step("count", count)])
nested = Pipeline(
    [*fan_out("outer", fan_out("inner", Pipeline([Step("noop", noop)]), 3), 3).steps, Step("count", count)]
)
gate = Pipeline([Step("gate", wait_at_gate, config=ONCE)])
shop = Celery("shop", set_as_current=False)


@shop.task(bind=True, autoretry_for=(ValueError,), retry_kwargs={"countdown": 0}, soft_time_limit=60)
def add(self, value: int, more: int = 1) -> int:
    if self.request.retries == 0:
        raise ValueError(value)
    return value + more


tasks = Step.of(add) >> Step.of(add.s(more=2), "again")
