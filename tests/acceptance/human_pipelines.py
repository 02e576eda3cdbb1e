"""Pipelines with questions to people, for the acceptance tests' workers. Values are trails, as in `acceptance_pipelines`."""

from __future__ import annotations

from typing import Any

from acceptance_pipelines import begin, visit
from pydantic import BaseModel

from flujo_client import HumanInTheLoopStep, ParallelStep, Pipeline, PipelineContext, Step


class Verdict(BaseModel):
    """What a person says."""

    approved: bool
    why: str = ""


def start(trail: Any) -> Any:
    begin()
    return trail


def finish(verdict: Verdict, *, context: PipelineContext) -> dict[str, Any]:
    begin()
    return {"approved": verdict.approved, "why": verdict.why, "asked": len(context.hitl_history)}


def ask(name: str = "ask", **rest: Any) -> HumanInTheLoopStep:
    return HumanInTheLoopStep(name, "May it go out?", input_schema=Verdict, **rest)


approval = Pipeline(
    [Step("start", start), ask(sink_to="scratchpad.verdict"), Step("finish", finish)], context_model=PipelineContext
)
hasty = Pipeline([ask(expires_s=0.5)], context_model=PipelineContext)
lanes = Pipeline(
    [
        ParallelStep(
            "arms",
            branches={
                "a": Pipeline([ask(), Step("after", start)]),
                "b": Step("b", visit),
                "c": Step("c", visit),
                "d": Pipeline([ask(), Step("after", start)]),
            },
            max_concurrency=1,
        )
    ]
)
