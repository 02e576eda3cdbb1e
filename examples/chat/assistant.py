"""An assistant that answers a prompt, and asks before it keeps the answer. Its model is any that speaks OpenAI's protocol."""

import os

from flujo_client import HumanInTheLoopStep, Pipeline, Step, StepConfig
from flujo_worker import make_agent_async

answer = make_agent_async(os.environ.get("CHAT_MODEL", "openai-chat:gpt-5-mini"), "Answer in a few sentences.", str)
keep = HumanInTheLoopStep("keep", message="Keep this answer?", input_schema={"type": "boolean"})
pipeline = Pipeline([Step("answer", answer, StepConfig(max_retries=2, stream=True)), keep], name="chat")
