"""Refinement: a loop of a generator and a critic, until the critic has nothing to add."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flujo_client.contract.results import Refinement, RefinementCheck
from flujo_client.pipeline.loop import LoopStep
from flujo_client.pipeline.nested import ImportStep
from flujo_client.pipeline.pipeline import Body, Pipeline, steps_of
from flujo_client.plan.identity import identify

GENERATOR = "generator"
CRITIC = "critic"


def refine_until(
    name: str,
    generator_pipeline: Body,
    critic_pipeline: Body,
    max_refinements: int,
    feedback_mapper: Callable[..., Any] | None,
) -> LoopStep:
    """Make the loop; see `Step.refine_until`."""
    steps = steps_of(generator_pipeline)
    if len(steps) != 1 or steps[0].name == CRITIC:
        steps = [ImportStep(GENERATOR, pipeline=generator_pipeline, inherit_context=True)]
    critic = ImportStep(CRITIC, pipeline=critic_pipeline, inherit_context=True, keeps_input=True)
    return LoopStep(
        name,
        loop_body_pipeline=Pipeline([*steps, critic]),
        exit_condition_callable=is_complete,
        max_loops=max_refinements,
        iteration_input_mapper=Feedback(feedback_mapper or with_feedback),
        loop_output_mapper=refined,
    )


def is_complete(refinement: Refinement, _: Any) -> bool:
    return refinement.check.is_complete


def refined(refinement: Refinement, _: Any) -> Any:
    return refinement.artifact if refinement.check.is_complete else refinement.check


def with_feedback(original_input: Any, check: RefinementCheck) -> dict[str, Any]:
    """Return the generator's next input: the loop's own, and the critic's feedback."""
    return {"original_input": original_input, "feedback": check.feedback}


@dataclass(frozen=True, eq=False)
class Feedback:
    """Makes the generator's next input, by a function of the loop's own input and the critic's check."""

    mapper: Callable[..., Any]

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        return {"feedback": identify(self.mapper)}

    def __call__(self, refinement: Refinement, _context: Any, _index: int, *, original_input: Any) -> Any:
        return self.mapper(original_input, refinement.check)
