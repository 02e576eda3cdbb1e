"""How to let an agent plan: a complaint is settled, one command at a time, and a person is asked before money is promised."""

from flujo_client import AgentCommand, PipelineResult, make_agentic_loop_pipeline, run_agentic_loop_pipeline
from flujo_worker.agents import make_agent_async

ORDERS = {"17": {"item": "kettle", "price": 30}}


def find_order(number: str) -> dict[str, object]:
    return ORDERS[number]


def write_letter(points: list[str]) -> str:
    return "Dear customer,\n" + "\n".join(points)


planner = make_agent_async(
    "openai:gpt-4o-mini",
    "You settle complaints. You get, as JSON, the goal, the names of the agents and the turns so far. Say what is to be done next: "
    "have `orders` find an order by its number, have `letters` write a letter of a list of points, ask a person before you promise "
    "money, and finish with the letter.",
    AgentCommand,
)

pipeline = make_agentic_loop_pipeline(planner, {"orders": find_order, "letters": write_letter}, max_loops=8)


async def settle(complaint: str) -> PipelineResult:
    return await run_agentic_loop_pipeline("examples.complaint:pipeline", complaint)


async def go_on(asked: PipelineResult, answer: str) -> PipelineResult:
    return await run_agentic_loop_pipeline("examples.complaint:pipeline", resume_from=asked, human_input=answer)


def turns(result: PipelineResult) -> list[str]:
    return [f"{each.turn}. {each.command.type}: {each.result}" for each in result.final_pipeline_context.command_log]
