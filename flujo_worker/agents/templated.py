"""Agents whose messages are rendered from templates: `BaseAgent` the user's, `make_templated_agent_async` the system prompt.

A templated agent's template sees the pipeline's context, the step's input, and its author's variables, which are logged as `agent.system.vars`. The
content of a context can come from strangers: it is rendered as data, but into the system prompt, where it influences a model most. Use only content
that you trust.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Unpack

from pydantic import BaseModel

from flujo_client.contract.context import TASK_FIELDS, PipelineContext
from flujo_client.plan.identity import identify
from flujo_client.serial import digest, safe_serialize
from flujo_worker.agents.answer import AgentAnswer, AgentResult
from flujo_worker.agents.factory import FlujoAgent, Front, make_agent_async
from flujo_worker.agents.previews import emit_variables, text_of, whole
from flujo_worker.agents.shaping import CallOptions, naming_options
from flujo_worker.runtime.attempt_run import in_thread

if TYPE_CHECKING:
    from flujo_worker.agents.factory import AnyModel

DEFAULT_TEMPLATE: Final = "default_user_prompt.md.j2"
_BOOKKEEPING: Final = frozenset(["run_id", "status", "call_count", *TASK_FIELDS])


class BaseAgent(Front):
    """An agent that receives its task and its context. Subclass it for your own template.

    As a step's agent its task is the step's input and its context the pipeline's; as an agent's tool both are what the calling agent gives.

    The arguments are those of `make_agent_async`.
    """

    user_prompt_template: ClassVar[str] = DEFAULT_TEMPLATE
    """The template of the user's message where there is a context; it may use `task` and `context`."""

    def __init__(
        self,
        model: AnyModel,
        system_prompt: str = "",
        output_type: Any = str,
        *,
        name: str | None = None,
        **options: Any,
    ) -> None:
        self.agent = agent = make_agent_async(model, system_prompt, output_type, name=name, **options)
        self.name, self.output_type = agent.name, agent.output_type

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        return {**identify(type(self)), "template": self.user_prompt_template, "target": identify(self.agent)}

    def __flujo_prompt__(self, task: Any, context: Any) -> str:
        """Estimate the user's message from the template; `_build_user_prompt` may be user code, which runs in attempts only."""
        return rendered(self.user_prompt_template, text_of(task), as_mapping(context))

    @naming_options
    async def run(self, task: Any, context: Any = None, **options: Unpack[CallOptions]) -> AgentResult:
        """Ask the model once: one system and one user message. `CallOptions` names the options.

        Anything but text becomes JSON in the task; the context, what to know for it, is a mapping or a model, and is not changed.

        Raises:
            TemplateError: the template cannot be rendered.
            Exception: what goes wrong when the model is asked.
        """
        # In a thread: a large message would block everything else in the process.
        prompt = await in_thread(lambda: self._build_user_prompt(text_of(task), as_mapping(context)))
        answer = await self.agent.run(prompt, **options)
        return AgentResult(**{each.name: getattr(answer, each.name) for each in fields(AgentAnswer)})

    def _build_user_prompt(self, task: str, context: dict[str, Any] | None) -> str:
        """Write the user's message; override it for one of your own."""
        return rendered(self.user_prompt_template, task, context)


def rendered(template: str, task: str, context: dict[str, Any] | None) -> str:
    """Render a template with task and context; without a context there is only the task."""
    if not context:
        return task
    from flujo_worker.agents.prompts import render_template

    return render_template(template, task=task, context=context)


def as_mapping(context: Any) -> dict[str, Any] | None:
    """Return a copy of a context as plain data.

    For a `PipelineContext` this leaves out Flujo's own fields, and fields that have not been written to. A value that is not a mapping is
    under `context`.
    """
    if context is None:
        return None
    plain = whole(dict(context) if isinstance(context, BaseModel) else context)
    if not isinstance(plain, dict):
        return {"context": plain}
    if not isinstance(context, PipelineContext):
        return plain
    unwritten = _unwritten()
    is_own = {key for key, value in plain.items() if key in unwritten and unwritten[key] == value} | _BOOKKEEPING
    return {key: value for key, value in plain.items() if key not in is_own}


@cache
def _unwritten() -> dict[str, Any]:
    plain: dict[str, Any] = safe_serialize(dict(PipelineContext()))
    return plain


class PlanGeneratorAgent(BaseAgent):
    """An agent that makes a plan from the information that sub-agents have collected.

    If the context has `collected_information`, its items are rendered after the task; otherwise the prompt is that of every `BaseAgent`.
    """

    user_prompt_template: ClassVar[str] = "agents/plan_generator_user.md.j2"
    input_schema: ClassVar[Path] = Path(__file__).parent / "contracts" / "plan_generator_input.schema.json"
    """The contract of that context, a JSON Schema's file, for `AgentTool(agent, input_schema=PlanGeneratorAgent.input_schema)`."""

    def _build_user_prompt(self, task: str, context: dict[str, Any] | None) -> str:
        if not context or "collected_information" not in context:
            return rendered(DEFAULT_TEMPLATE, task, context)
        from flujo_worker.agents.prompts import render_template

        known = {"target_url": "", "task_name": "Generate Crawl Plan"} | context
        names = ("target_url", "task_name", "collected_information")
        return render_template(self.user_prompt_template, task=task, **{name: known[name] for name in names})


def make_templated_agent_async(
    model: AnyModel,
    template: str,
    output_type: Any = str,
    *,
    variables: Mapping[str, Any] | None = None,
    **options: Any,
) -> TemplatedAgent:
    """Make an agent whose system prompt is a template.

    Args:
        model: as for `make_agent_async`.
        template: a template's name, as for `render_template`, if it ends in `.j2`; else the template itself.
        output_type: as for `make_agent_async`.
        variables: what the template may use in addition to `context` and `input`; one of these names is hidden by it.
        options: the other parameters of `make_agent_async`.
    """
    return TemplatedAgent(make_agent_async(model, "", output_type, **options), template, dict(variables or {}))


class TemplatedAgent(Front):
    """An agent made by `make_templated_agent_async`."""

    agent: FlujoAgent

    def __init__(self, agent: FlujoAgent, template: str, variables: dict[str, Any]) -> None:
        self.agent, self.name, self.output_type = agent, agent.name, agent.output_type
        self.template, self.variables = template, variables

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        prompt = digest(safe_serialize([self.template, self.variables]))
        return {"templated": prompt, "target": identify(self.agent)}

    def __flujo_prompt__(self, data: Any, context: Any) -> str:
        """Render the system prompt, and write the input after it; to estimate what a call costs."""
        return f"{self._rendered(data, context)[1]}\n\n{text_of(data)}"

    @naming_options
    async def run(self, data: Any, *, context: Any = None, **options: Unpack[CallOptions]) -> AgentAnswer:
        """Render the system prompt and ask the model once; otherwise as `FlujoAgent.run`. Raises TemplateError: the template cannot be rendered."""
        known, system = await in_thread(lambda: self._rendered(data, context))
        emit_variables(self.template if self._is_named else "given as text", known)
        return await self.agent.run(data, instructions=system, **options)

    @property
    def _is_named(self) -> bool:
        return self.template.endswith(".j2")

    def _rendered(self, data: Any, context: Any) -> tuple[dict[str, Any], str]:
        """Render the system prompt, and return the template's variables, too. To be called in a thread: both may be large."""
        from flujo_worker.agents.prompts import render_template, render_text

        known = {**self.variables, "context": as_mapping(context) or {}, "input": whole(data)}
        return known, (render_template if self._is_named else render_text)(self.template, **known)
