"""Prompts from templates: a reviewer who is told what was said before, and one whose system prompt depends on the run."""

from pydantic import BaseModel

from flujo_client import Pipeline, Step
from flujo_worker.agents import BaseAgent, make_templated_agent_async


class Review(BaseModel):
    audience: str = "everybody"
    remarks: list[str] = []


class Reviewer(BaseAgent):
    user_prompt_template = "examples:prompts/review.md.j2"


reviewer = Reviewer("local:mock", "You review texts.", name="reviewer")
translator = make_templated_agent_async(
    "local:mock", "You write for {{ context.audience }}. {{ tone }}", variables={"tone": "Be kind."}
)

pipeline = Pipeline([Step("review", reviewer), Step("translate", translator)], name="review", context_model=Review)
