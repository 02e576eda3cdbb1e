"""Agents that call agents, with models behind HTTP: the seed's plan generator by its contract, and one that needs a person."""

from flujo_client import Pipeline, PipelineContext, Step, StepConfig
from flujo_client.errors import PausedException
from flujo_worker.agents import AgentTool, PlanGeneratorAgent, make_agent_async

CONTRACT = PlanGeneratorAgent.input_schema
ONCE = StepConfig(max_retries=0)

plan_generator = PlanGeneratorAgent("openai-chat:gpt-4o-mini", "Write a crawl plan.", name="plan_generator_agent")
plan_tool = AgentTool(plan_generator, description="Writes a crawl plan.", input_schema=CONTRACT)
main_agent = make_agent_async("openai-chat:gpt-4o", "Have a plan generated.", name="main_agent", tools=[plan_tool])

plans = Pipeline([Step("main", main_agent, config=ONCE)], context_model=PipelineContext)


def sign(task: str, *, context: dict[str, str]) -> str:
    raise PausedException(f"{task} for {context['target_url']}?")


signer = make_agent_async("openai-chat:gpt-4o", "Have it signed.", name="main_agent", tools=[AgentTool(sign)])

signed = Pipeline([Step("main", signer, config=ONCE), Step("then", str.upper)])
