"""The default pipeline: a checklist, then solutions until one passes it."""

from __future__ import annotations

from typing import Any, Final

from pydantic import ValidationError

from flujo_client.contract.recipes import Candidate, Checklist, ChecklistItem, DefaultContext
from flujo_client.errors import AgentError
from flujo_client.pipeline.conditional import ConditionalStep
from flujo_client.pipeline.loop import LoopStep
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import AgentProcessors, Step, StepConfig

_FORM: Final = '{"items": [{"description": …, "passed": …, "feedback": …}]}'
_WANTED: Final = "give its agent the output type `Checklist`, or an output_schema like it"


def make_default_pipeline(
    review_agent: Any,
    solution_agent: Any,
    validator_agent: Any,
    reflection_agent: Any = None,
    max_retries: int | None = None,
    max_iters: int = 3,
    *,
    name: str = "default",
) -> Pipeline:
    """Make a pipeline that solves a task and checks the solution, until one passes or `max_iters` were made.

    Its output is the last solution as a `Candidate`; `checklist.is_passed` shows whether it passed. Each agent's call is a step: retried,
    charged and traced. An invalid answer fails the attempt, and the next one gets the reason.

    Args:
        review_agent: gets the task, and returns a `Checklist` for the solution.
        solution_agent: gets `task` and `checklist`, and after a solution that did not pass `solution`, `failed` and `reflection`;
            returns a solution.
        validator_agent: gets `task`, `solution` and `checklist`, and returns the checklist with `passed` and `feedback` for every item.
        reflection_agent: gets the same as the solution agent after a solution that did not pass, and returns advice for it.
        max_retries: attempts of each step after the first; the defaults of agents and steps when None.
        max_iters: maximum solutions.
        name: the name of the runs.
    """
    config = StepConfig() if max_retries is None else StepConfig(max_retries=max_retries)

    def asking(step: str, agent: Any, before: list[Any], after: Any, field: str) -> Step:
        return Step(step, agent, config=config, processors=AgentProcessors(before, [after]), sink_to=field)

    body = [
        asking("solution", solution_agent, [to_solve], as_text, "solution"),
        asking("validate", validator_agent, [to_validate], judged, "checklist"),
    ]
    if reflection_agent is not None:
        reflection = asking("reflection", reflection_agent, [to_solve], as_text, "reflection")
        branches = {True: reflection, False: Step("begin", unchanged)}
        body.insert(0, ConditionalStep("reflect", condition_callable=has_failed, branches=branches))
    solve = LoopStep(
        "solve",
        loop_body_pipeline=Pipeline(body),
        exit_condition_callable=is_passed,
        max_loops=max_iters,
        loop_output_mapper=candidate,
    )
    review = asking("review", review_agent, [], reviewed, "checklist")
    return Pipeline([Step("task", begin, sink_to="task"), review, solve], name=name, context_model=DefaultContext)


def begin(task: Any, *, context: DefaultContext) -> Any:
    """Forget what was made for the task before this one: contexts are passed on, from item to item and from run to run."""
    context.solution = context.reflection = None
    return task


def to_solve(_: Any, *, context: DefaultContext) -> dict[str, Any]:
    """Make the input of an agent that makes a solution, or reflects on the last one."""
    given = {"task": context.task, "checklist": _descriptions(context)}
    if context.solution is None:
        return given
    failed = [item.model_dump(exclude={"passed"}) for item in _checklist(context).failed]
    return {**given, "solution": context.solution, "failed": failed, "reflection": context.reflection}


def to_validate(solution: str, *, context: DefaultContext) -> dict[str, Any]:
    """Make the input of an agent that judges a solution."""
    return {"task": context.task, "solution": solution, "checklist": _descriptions(context)}


def reviewed(output: Any) -> Checklist:
    """Read a checklist that has not been judged; raise AgentError for anything else."""
    found = _read(output)
    if not found.items:
        raise AgentError("the checklist is empty", suggestion="return at least one item")
    return Checklist(items=[ChecklistItem(description=item.description) for item in found.items])


def judged(output: Any, *, context: DefaultContext) -> Checklist:
    """Read the verdict on each item, in the items' order; their names stay as they are. Raises AgentError."""
    items, verdicts = _checklist(context).items, _read(output).items
    count = sum(item.passed is not None for item in verdicts)
    if not len(items) == len(verdicts) == count:
        raise AgentError(
            f"the answer must repeat the {len(items)} items of the checklist in order, each with `passed`: {len(verdicts)} came, "
            f"{count} of them judged"
        )
    pairs = zip(items, verdicts, strict=True)
    return Checklist(items=[item.model_copy(update={"description": each.description}) for each, item in pairs])


def as_text(output: Any) -> str:
    """Read a text; raises AgentError."""
    if not isinstance(output, str) or not output.strip():
        raise AgentError(f"expected a non-empty text, got a {type(output).__name__}")
    return output


def has_failed(_: Any, context: DefaultContext) -> bool:
    """Return whether there is a solution, and it did not pass."""
    return bool(_checklist(context).failed)


def is_passed(_: Any, context: DefaultContext) -> bool:
    return _checklist(context).is_passed


def candidate(_: Any, context: DefaultContext) -> Candidate:
    checklist = _checklist(context)
    return Candidate(solution=context.solution or "", score=checklist.score, checklist=checklist)


def unchanged(data: Any) -> Any:
    """Return what came: before the first solution there is nothing to think about."""
    return data


def _read(output: Any) -> Checklist:
    try:
        return Checklist.model_validate(output, from_attributes=True)
    except ValidationError:  # its text would contain the answer
        problem = f"expected a checklist, {_FORM}, got a {type(output).__name__} of another form"
        raise AgentError(problem, suggestion=_WANTED) from None


def _descriptions(context: DefaultContext) -> list[str]:
    return [item.description for item in _checklist(context).items]


def _checklist(context: DefaultContext) -> Checklist:
    return context.checklist or Checklist(items=[])
