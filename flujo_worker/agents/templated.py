"""`make_templated_agent_async`: an agent whose system prompt is rendered for each call.

The template sees the pipeline's context, the step's input, and its author's variables; its variables are logged as `agent.system.vars`. The
content of a context can come from strangers: it is rendered as data, but into the system prompt, where it influences a model most. Use only
content that you trust.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flujo_client.plan.identity import identify
from flujo_client.serial import digest, safe_serialize
from flujo_worker.agents.base import as_mapping
from flujo_worker.agents.factory import Front, make_agent_async
from flujo_worker.agents.previews import emit_variables, text_of, whole
from flujo_worker.runtime.attempt_run import in_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flujo_worker.agents.answer import AgentAnswer
    from flujo_worker.agents.factory import AnyModel, FlujoAgent
    from flujo_worker.agents.shaping import Shaping


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

    def __init__(self, agent: FlujoAgent, template: str, variables: dict[str, Any]) -> None:
        super().__init__(agent)
        self.template, self.variables = template, variables

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        prompt = digest(safe_serialize([self.template, self.variables]))
        return {"templated": prompt, "target": identify(self.agent)}

    def __flujo_prompt__(self, data: Any, context: Any) -> str:
        """Render the system prompt, and write the input after it; to estimate what a call costs."""
        return f"{self._rendered(data, context)[1]}\n\n{text_of(data)}"

    async def run(  # noqa: PLR0913 - a step passes on only what is named
        self,
        data: Any,
        *,
        context: Any = None,
        guidance: str | None = None,
        history: str | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        max_tokens: int | None = None,
        shaping: Shaping | None = None,
    ) -> AgentAnswer:
        """Render the system prompt and ask the model once; otherwise as `FlujoAgent.run`.

        Raises:
            TemplateError: the template cannot be rendered.
        """
        known, system = await in_thread(lambda: self._rendered(data, context))
        emit_variables(self.template if self._is_named else "given as text", known)
        return await self.agent.run(
            data,
            guidance=guidance,
            history=history,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            max_tokens=max_tokens,
            shaping=shaping,
            instructions=system,
        )

    @property
    def _is_named(self) -> bool:
        return self.template.endswith(".j2")

    def _rendered(self, data: Any, context: Any) -> tuple[dict[str, Any], str]:
        """Render the system prompt, and return the template's variables, too. To be called in a thread: both may be large."""
        from flujo_worker.agents.prompts import render_template, render_text

        known = {**self.variables, "context": as_mapping(context) or {}, "input": whole(data)}
        return known, (render_template if self._is_named else render_text)(self.template, **known)
