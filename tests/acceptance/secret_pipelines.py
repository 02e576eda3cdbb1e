"""Pipelines whose values are secret, for the acceptance tests' workers: small ones, and a context that is stored in parts."""

from pydantic import BaseModel

from flujo_client import HumanInTheLoopStep, ParallelStep, Pipeline, Step

MARK = "Ada Lovelace, born 1815"
ROWS = 12_000


class File(BaseModel):
    """A context above the size from which values are stored in parts."""

    name: str = ""
    rows: list[str] = []
    count: int = 0


def read(name: str, *, context: File) -> str:
    context.rows = [f"{name} {number}" for number in range(ROWS)]
    context.name = name
    return name


def count(name: str, *, context: File) -> str:
    context.count = len(context.rows)
    return name


def echo(name: str) -> str:
    return name


file = Pipeline(
    [
        Step("read", read),
        Step("count", count),
        ParallelStep("both", branches={"left": Step("left", echo), "right": Step("right", echo)}),
        HumanInTheLoopStep("ask", "May it go out?"),
        Step("end", echo),
    ],
    context_model=File,
)
