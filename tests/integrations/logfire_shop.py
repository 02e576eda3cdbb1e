"""A module of pipelines whose project uses Logfire: it traces pydantic-ai, and sends to the collector that the variables name."""

import logfire
from phoenix_shop import agent

from flujo_client import Pipeline, Step, StepConfig

logfire.configure(send_to_logfire=False, console=False, inspect_arguments=False)
logfire.instrument_pydantic_ai()

research = Pipeline([Step("find", agent, config=StepConfig(durable=True))], name="research")
