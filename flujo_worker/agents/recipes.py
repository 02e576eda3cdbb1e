"""Ready-made agents for common needs: a short system prompt, a typed output, a model from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel

from flujo_client.config.manager import ConfigManager
from flujo_client.contract.recipes import Checklist
from flujo_worker.agents.factory import FlujoAgent, make_agent_async

if TYPE_CHECKING:
    from flujo_worker.agents.factory import AnyModel

CANNOT_REPAIR: Final = "CANNOT_REPAIR"
"""The repair agent's answer for a text that it cannot repair."""

_REVIEW: Final = """\
You are given a task. Write the checklist that a solution will be held against: short statements, each of one thing that can be judged true or
false of a solution by reading it. Name what the task demands and what anybody would expect of it, and nothing else. Leave `passed` and
`feedback` empty."""
_SOLUTION: Final = """\
You are given a task and the checklist that your solution will be held against. Answer with the solution alone. If an earlier solution is there,
write a better one: keep what was right in it, correct what is listed under `failed`, and follow the `reflection` if there is one."""
_VALIDATOR: Final = """\
You are given a task, a solution and a checklist. Judge the solution by each item, in the order they have, and answer with all of them: `passed` is
true only if the solution itself shows it. Where it is false, say in `feedback` what is wrong and where."""
_REFLECTION: Final = """\
You are given a task, a solution, and the items of a checklist that it did not pass, with the reasons. Say what the cause of these faults is, and
how to go about the next solution. Be brief and definite; do not write the solution."""
_SELF_IMPROVEMENT: Final = """\
You are given the results of a pipeline's runs: its steps, what they were given, what they answered, and what failed. Find what goes wrong again
and again, and suggest a change for each: of a step's prompt, of its settings, or of the pipeline. Suggest nothing that the results do not show a need for."""
_REPAIR: Final = f"""\
You are given a text that was to be JSON, and what is wrong with it, perhaps with its schema. Answer with the same data as valid JSON, and nothing around it.
Change nothing that is not wrong, and invent nothing. If it cannot be done, answer {CANNOT_REPAIR} alone."""


class ImprovementSuggestion(BaseModel):
    """One change that would help; `step` is the step it is about, None for the pipeline as a whole."""

    step: str | None = None
    problem: str
    suggestion: str


class ImprovementReport(BaseModel):
    """The answer of the self-improvement agent."""

    suggestions: list[ImprovementSuggestion]


def make_review_agent(model: AnyModel | None = None, **options: Any) -> FlujoAgent:
    """Make an agent that makes a `Checklist` of a task.

    Args:
        model: as for `make_agent_async`; the setting `agents.default_review_model` when None.
        options: the other parameters of `make_agent_async`, `system_prompt` and `output_type` too; yours go before the recipe's own.

    Raises SettingsError: the settings cannot be read.
    """
    return _make("review", model, _REVIEW, Checklist, options)


def make_solution_agent(model: AnyModel | None = None, **options: Any) -> FlujoAgent:
    """Make an agent that answers a task with a text; its model is `agents.default_solution_model`."""
    return _make("solution", model, _SOLUTION, str, options)


def make_validator_agent(model: AnyModel | None = None, **options: Any) -> FlujoAgent:
    """Make an agent that judges a solution by a `Checklist`; its model is `agents.default_validator_model`."""
    return _make("validator", model, _VALIDATOR, Checklist, options)


def make_reflection_agent(model: AnyModel | None = None, **options: Any) -> FlujoAgent:
    """Make an agent that says why a solution did not pass; its model is `agents.default_reflection_model`."""
    return _make("reflection", model, _REFLECTION, str, options)


def make_self_improvement_agent(model: AnyModel | None = None, **options: Any) -> FlujoAgent:
    """Make an agent that makes an `ImprovementReport` of runs' results; its model is `agents.default_self_improvement_model`."""
    return _make("self_improvement", model, _SELF_IMPROVEMENT, ImprovementReport, options)


def make_repair_agent(model: AnyModel | None = None, **options: Any) -> FlujoAgent:
    """Make an agent that converts a text to JSON, or answers `CANNOT_REPAIR`; its model is `agents.default_repair_model`.

    It is not called automatically: AROS repairs outputs without a model.
    """
    return _make("repair", model, _REPAIR, str, options)


def _make(kind: str, model: AnyModel | None, prompt: str, output_type: Any, options: dict[str, Any]) -> FlujoAgent:
    chosen = model if model is not None else getattr(ConfigManager().settings().agents, f"default_{kind}_model")
    return make_agent_async(chosen, **{"system_prompt": prompt, "output_type": output_type, "name": kind, **options})
