"""An agentic loop for the acceptance tests' workers: an agent works behind a gate, a person is asked, and what both said is the answer."""

from typing import Any

from acceptance_pipelines import begin
from blueprint_pipelines import wait_at_gate

from flujo_client import AgentCommand, AskHumanCommand, FinishCommand, RunAgentCommand, make_agentic_loop_pipeline


def plan(brief: dict[str, Any]) -> AgentCommand:
    begin()
    results = [each["result"] for each in brief["command_log"]]
    match len(results):
        case 0:
            return RunAgentCommand(agent_name="large", input_data=brief["goal"])
        case 1:
            return RunAgentCommand(agent_name="gated", input_data=results[0])
        case 2:
            return AskHumanCommand(question=f"Is {results[1]} right?")
        case _:
            return FinishCommand(final_answer=results[1:])


def large(text: str) -> str:
    begin()
    return text.upper()


AGENTS = {"large": "agentic_pipelines:large", "gated": wait_at_gate}
research = make_agentic_loop_pipeline(plan, AGENTS, name="research")
