"""Run the ready-made pipelines and wait for them."""

from __future__ import annotations

from typing import Any

from flujo_client.api.runner import Flujo
from flujo_client.contract.recipes import Candidate
from flujo_client.contract.results import PipelineResult
from flujo_client.errors import ResumeError
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step


async def run_agentic_loop_pipeline(
    pipeline: str | Pipeline | Step,
    initial_prompt: Any = None,
    *,
    resume_from: PipelineResult | str | None = None,
    human_input: Any = None,
    **options: Any,
) -> PipelineResult:
    """Run an agentic loop's pipeline to its end, or to its next question to a person.

    Args:
        pipeline: a pipeline of `make_agentic_loop_pipeline` in a module, or its reference.
        initial_prompt: the goal.
        resume_from: the result or id of a run that waits for a person, to continue instead; `initial_prompt` is ignored.
        human_input: the answer to its question.
        options: further options of `Flujo`.

    Raises:
        ResumeError: the run has no open question, the answer does not fit, or `resume_from` is missing.
    """
    if resume_from is None and human_input is not None:
        raise ResumeError("human_input needs the run that asked for it", suggestion="pass that run as `resume_from`")
    async with Flujo(pipeline, **options) as runner:
        if resume_from is not None:
            return await runner.resume_async(resume_from, human_input)
        return await runner.run_async(initial_prompt)


async def run_default_pipeline(pipeline: str | Pipeline | Step, task: Any, **options: Any) -> Candidate:
    """Run a default pipeline for a task, and return its last solution, whether it has passed or not.

    Args:
        pipeline: a pipeline of `make_default_pipeline` in a module, or its reference.
        task: the task.
        options: further options of `Flujo`.

    Raises:
        RunEnded: an agent failed permanently, or something else ended the run.
        PausedException: an agent asks a person; `Flujo(…).resume_async` answers and continues.
    """
    async with Flujo(pipeline, **options) as runner:
        result = await runner.run_async(task)
    found: Candidate = result.raise_for_status().output
    return found
