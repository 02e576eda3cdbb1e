"""Every live step of a pipeline, under the path its node has in the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_client.errors import PipelineError
from flujo_client.pipeline.pipeline import steps_of
from flujo_client.sizes import MAX_CONTAINERS, MAX_STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flujo_client.pipeline.pipeline import Body
    from flujo_client.pipeline.step import Step


def walk(pipeline: Body) -> Iterator[tuple[str, Step]]:
    """Give every step with its path, a container before what it holds, all in declared order.

    Raises:
        PipelineError: containers stand more than 20 deep in each other, as in a pipeline that contains itself; or there are more
            than 10 000 steps that hold no others.
    """
    count = 0
    for path, step, holds_steps in _walk(pipeline, "", 0):
        count += not holds_steps
        if count > MAX_STEPS:
            raise PipelineError(f"the pipeline has more than {MAX_STEPS:,} steps", code="PIPELINE_TOO_LARGE")
        yield path, step


def _walk(body: Body, above: str, depth: int) -> Iterator[tuple[str, Step, bool]]:
    """Every step with its path, and whether it holds others."""
    if depth > MAX_CONTAINERS:
        message = f"'{above.removesuffix('/')}' stands in more than {MAX_CONTAINERS} containers"
        raise PipelineError(message, code="PIPELINE_TOO_LARGE")
    for step in steps_of(body):
        path = above + step.name
        bodies = step.bodies()
        yield path, step, any(map(steps_of, bodies.values()))
        for key, inner in bodies.items():
            yield from _walk(inner, f"{path}/{key}/", depth + 1)
