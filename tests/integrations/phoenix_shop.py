"""An agent with a tool, whose model answers here and now under the name of one that a provider bills."""

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage

from flujo_client import Pipeline, Step, StepConfig


class Billed(FunctionModel):
    """Calls the tool, and answers then."""

    def __init__(self):
        super().__init__(self.answer, model_name="gpt-4o-mini")

    @property
    def system(self):
        return "openai"

    async def answer(self, messages, info):
        if len(messages) == 1:
            call = ToolCallPart("look_up", {"topic": "bees"})
            return ModelResponse([call], usage=RequestUsage(input_tokens=1000, output_tokens=100))
        return ModelResponse([TextPart("42")], usage=RequestUsage(input_tokens=2000, output_tokens=300))

    async def request(self, *args, **rest):
        response = await super().request(*args, **rest)
        response.provider_name = "openai"
        return response


def look_up(topic: str) -> str:
    return f"{topic}: 42"


agent = Agent(Billed(), name="researcher", tools=[look_up])
research = Pipeline([Step("find", agent, config=StepConfig(durable=True))], name="research")
