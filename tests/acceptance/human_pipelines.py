"""Pipelines with questions to people, for the acceptance tests' workers. Values are trails, as in `acceptance_pipelines`."""

from typing import Any

from acceptance_pipelines import begin, visit
from pydantic import BaseModel

from flujo_client import ConditionalStep, HumanInTheLoopStep, ParallelStep, Pipeline, PipelineContext, Step
from flujo_client.errors import PausedException


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


def choose(_output: Any, context: PipelineContext, resume_input: Any = None) -> str:
    if resume_input is None:
        raise PausedException("left or right?")
    return str(resume_input)


def merge(context: PipelineContext, _branches: Any, resume_input: Any = None) -> PipelineContext:
    if resume_input is None:
        raise PausedException("whose words?")
    context.scratchpad["merged"] = resume_input
    return context


def ask(name: str = "ask", **rest: Any) -> HumanInTheLoopStep:
    return HumanInTheLoopStep(name, "May it go out?", input_schema=Verdict, **rest)


approval = Pipeline(
    [Step("start", start), ask(sink_to="scratchpad.verdict"), Step("finish", finish)], context_model=PipelineContext
)
functions_that_ask = Pipeline(
    [
        Step("start", start),
        ConditionalStep("way", condition_callable=choose, branches={"left": Step("go", start)}),
        ParallelStep("fan", branches={"a": Step("a", start), "b": Step("b", start)}, merge_strategy=merge),
        Step("end", start),
    ],
    context_model=PipelineContext,
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
DAY_S = 86_400.0
patient = Pipeline(
    [
        HumanInTheLoopStep("first", "Pay?", expires_s=30 * DAY_S, on_expiry="default", default="no"),
        HumanInTheLoopStep("second", "Sure?", expires_s=DAY_S, on_expiry="default", default="late"),
    ]
)
