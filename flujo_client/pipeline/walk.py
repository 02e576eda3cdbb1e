"""Every live step of a pipeline, under the path its node has in the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_client.errors import PipelineError
from flujo_client.pipeline.compose import steps_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flujo_client.pipeline.compose import Body
    from flujo_client.pipeline.step import Step

MAX_DEPTH = 20
MAX_NODES = 10_000


def walk(pipeline: Body) -> Iterator[tuple[str, Step]]:
    """Give every step with its path, a container before what it holds, all in declared order.

    Raises:
        PipelineError: containers stand more than 20 deep in each other, as in a pipeline that contains itself; or there are more
            than 10 000 steps.
    """
    for count, found in enumerate(_walk(pipeline, "", 0)):
        if count == MAX_NODES:
            raise PipelineError(f"the pipeline has more than {MAX_NODES:,} steps", code="PIPELINE_TOO_LARGE")
        yield found


def _walk(body: Body, above: str, depth: int) -> Iterator[tuple[str, Step]]:
    if depth > MAX_DEPTH:
        message = f"'{above.removesuffix('/')}' stands in more than {MAX_DEPTH} containers"
        raise PipelineError(message, code="PIPELINE_TOO_LARGE")
    for step in steps_of(body):
        path = above + step.name
        yield path, step
        for key, inner in step.bodies().items():
            yield from _walk(inner, f"{path}/{key}/", depth + 1)
