"""The plan generator's prompt: what other agents have found out, as Markdown (M-317…M-322)."""

from __future__ import annotations

from typing import Any, ClassVar

from flujo_worker.agents.base import DEFAULT_TEMPLATE, BaseAgent, rendered


class PlanGeneratorAgent(BaseAgent):
    """An agent that makes a plan of what sub-agents have collected.

    Where the context has `collected_information`, its items are rendered one after the other, the task before them (C-38); else it is
    prompted as every `BaseAgent`.
    """

    user_prompt_template: ClassVar[str] = "agents/plan_generator_user.md.j2"

    def _build_user_prompt(self, task: str, context: dict[str, Any] | None) -> str:
        if not context or "collected_information" not in context:
            return rendered(DEFAULT_TEMPLATE, task, context)
        from flujo_worker.agents.prompts import render_template

        return render_template(
            self.user_prompt_template,
            task=task,
            target_url=context.get("target_url", ""),
            task_name=context.get("task_name", "Generate Crawl Plan"),
            collected_information=context["collected_information"],
        )
