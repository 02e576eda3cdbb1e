"""What W9 runs: calls of a model, each a branch of a fan-out. A module of its own, so that other workloads do not load the provider's library."""

from flujo_client import Pipeline, Step
from flujo_worker.agents import make_agent_async
from tests.bench.side_library import INSTRUCTIONS, MODEL
from tests.bench.workloads import CALLS

ask = Step("ask", make_agent_async(MODEL, INSTRUCTIONS, output_type=str))
calls = Pipeline([Step.parallel("calls", {f"b{number}": ask for number in range(CALLS)})])
