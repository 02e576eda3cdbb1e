"""How to ask a person: a text goes out when somebody has approved it, or not at all."""

from pydantic import BaseModel

from flujo_client import FlujoClient, HumanInTheLoopStep, Pipeline, PipelineContext, Step

DAY_S = 86_400


class Verdict(BaseModel):
    approved: bool
    why: str = ""


def write(topic: str) -> str:
    return f"All about {topic}"


def question(text: str, _context: PipelineContext) -> str:
    return f"May this go out?\n\n{text}"


def publish(verdict: Verdict, *, context: PipelineContext) -> str:
    return str(context.step_outputs["write"]) if verdict.approved else f"kept back: {verdict.why}"


approve = HumanInTheLoopStep(
    "approve",
    question,
    input_schema=Verdict,
    sink_to="scratchpad.verdict",
    expires_s=7 * DAY_S,
    on_expiry="escalate",
    escalate_to="editor in chief",
)

pipeline = Pipeline([Step("write", write), approve, Step("publish", publish)], context_model=PipelineContext)


def approve_all(client: FlujoClient, actor: str) -> list[str]:
    for asked in client.approvals(pipeline="publication"):
        client.get_run(asked.run_id).resume({"approved": True}, step=asked.step, actor=actor)
    return [run.id for run in client.list_runs(status="paused")]
