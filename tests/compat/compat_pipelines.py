"""Pipelines of the matrix that no acceptance test has. Workers import them."""

from acceptance_pipelines import ONCE, wait_at_gate

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
