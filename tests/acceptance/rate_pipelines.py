"""The pipeline that workers run at a model with rate limits (`tests/bench/rates.py`)."""

from pydantic_ai.models.openai import OpenAIChatModel

from flujo_client import Pipeline, Step, StepConfig
from flujo_worker.agents import make_agent_async

asking = Pipeline(
    [Step("ask", make_agent_async(OpenAIChatModel("limited")), config=StepConfig(max_tokens=50, max_retries=0))]
)
