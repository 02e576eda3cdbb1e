"""A conversation with a person, for the acceptance tests' workers: a model that says how much it was told, and what came last."""

from typing import Any

from acceptance_pipelines import begin

from flujo_client import HumanInTheLoopStep, Pipeline, PipelineContext, Step
from flujo_worker.agents.factory import make_agent_async
from flujo_worker.agents.scripted import scripted_model


def reply(prompt: str) -> str:
    """Answer by what is in the prompt alone."""
    begin()
    *told, said = prompt.splitlines()
    turns = [line for line in told if line.startswith('{"role"')]
    return f"{len(turns)} turns, then {said}"


def is_over(answer: Any, _context: Any) -> bool:
    return bool(answer == "bye")


chat = Pipeline(
    [
        Step.loop_until(
            "chat",
            Pipeline(
                [
                    Step("reply", make_agent_async(scripted_model(reply))),
                    HumanInTheLoopStep("ask", lambda said, _: said),
                ]
            ),
            is_over,
            max_loops=10,
            conversation=True,
        )
    ],
    name="chat",
    context_model=PipelineContext,
)
