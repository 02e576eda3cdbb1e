"""The published case: an agent whose tool rates by 0 to 10, and after a deploy between two of its turns by 0 to 100."""

SOURCE = '''
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

from flujo_client import HumanInTheLoopStep, LoopStep, Pipeline, PipelineContext, Step
from flujo_worker.agents.factory import make_agent_async


def rate(text: str) -> int:
    """Rate a text."""
    return 8


def answer(messages, info):
    """Ask the tool, then tell what it said."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return ModelResponse(parts=[TextPart(f"rated {last.content}")])
    return ModelResponse(parts=[ToolCallPart("rate", {"text": "a draft"})])


def ask_model():
    return FunctionModel(answer)


def is_done(output, context):
    return output == "enough"


judge = make_agent_async(ask_model, "You judge drafts.", tools=[rate], name="judge")
turn = Pipeline([Step("judge", judge), HumanInTheLoopStep("ask", "Another turn?")])
pipeline = Pipeline(
    [LoopStep("talk", loop_body_pipeline=turn, exit_condition_callable=is_done, max_loops=9)],
    context_model=PipelineContext,
    on_body_change="POLICY",
)
'''

TEN, HUNDRED = "return 8", "return 80"


def judging(scale: str = TEN, *, policy: str = "warn", **replaced: str) -> str:
    """Write the module. The keyword arguments name texts to replace: `prompt`, `schema`, `comment`."""
    texts = {
        "prompt": "You judge drafts.",
        "docstring": '"""Ask the tool, then tell what it said."""',
        "argument": "text: str",
    }
    source = SOURCE.replace(TEN, scale).replace("POLICY", policy)
    for name, text in replaced.items():
        source = source.replace(texts[name], text)
    return source
