"""Runs that browsers follow: a story, and a question about it."""

from stream_pipelines import teller

from flujo_client import HumanInTheLoopStep, Pipeline, Step, StepConfig

keep = HumanInTheLoopStep("keep", message="Keep it?", input_schema={"type": "boolean"})
asked = Pipeline([Step("tell", teller, StepConfig(max_retries=1, stream=True)), keep], name="asked")
