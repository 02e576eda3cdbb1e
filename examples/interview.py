"""A conversation: a model asks, a person answers, and the model is told all of it."""

from flujo_client import HistoryManagement, HumanInTheLoopStep, Pipeline, PipelineContext, Step
from flujo_worker.agents import make_agent_async

host = make_agent_async("openai:gpt-4o-mini", "You interview guests. Ask one question at a time.")


def as_said(question: str, _context: PipelineContext) -> str:
    return question


def is_over(answer: str, _context: PipelineContext) -> bool:
    return "goodbye" in answer


def count(_answer: str, context: PipelineContext) -> str:
    return f"{len(context.conversation_history)} turns"


interview = Step.loop_until(
    "interview",
    Pipeline([Step("host", host), HumanInTheLoopStep("guest", as_said)]),
    is_over,
    max_loops=8,
    conversation=True,
    history_management=HistoryManagement(strategy="summarize", max_tokens=2000),
    loop_output_mapper=count,
)
pipeline = Pipeline([interview], context_model=PipelineContext)
