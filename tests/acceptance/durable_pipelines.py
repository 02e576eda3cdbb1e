"""A durable step whose agent takes twelve turns, every other one with five tools at once. Each real call leaves a line in a file.

The model is scripted: what it answers follows from the conversation alone, so an undisturbed run and a disturbed one end alike. A run's input
says what goes wrong: `kill:<model or tool>:<number>:<where>`, `down:<number>` for a request that is refused once, or `linger:<number>` for one
that is answered when there is a file `go-on`.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from acceptance_pipelines import folder
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from pydantic import BaseModel
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import Instrumentation
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.usage import RequestUsage

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.attempt_info import current_attempt
from flujo_worker import failpoints

TURNS, TOOLS = 12, 5
PAUSE_S = 0.01


class Found(BaseModel):
    """The context: what tools have written."""

    places: list[int] = []


def note(*what: object) -> int:
    """Leave a line, and return how many calls of this kind there have been in the run; one write, so that lines do not mix."""
    info = current_attempt()
    run = info.run_id if info else "-"
    path = folder() / f"calls-{run}"
    with path.open("ab", buffering=0) as file:
        file.write((" ".join(map(str, what)) + "\n").encode())
    return sum(line.startswith(str(what[0])) for line in path.read_text().splitlines())


def disturb(prompt: str, kind: str, number: int) -> None:
    """Do what the run's input says, at this call."""
    if prompt == f"down:{number}" and kind == "model" and once(prompt):
        raise ModelHTTPError(503, "scripted", "overloaded")
    word, _, rest = prompt.partition(":")
    if word != "kill" or not rest.startswith(f"{kind}:{number}:"):
        return
    info, where = current_attempt(), rest.rpartition(":")[2]
    marker = folder() / f"killed-{info.run_id if info else ''}"
    failpoints.arm(f"{'unit_answered' if where == 'during' else where}:kill:{marker}")
    if where == "during":
        failpoints.hit("unit_answered")


def run_id() -> str:
    info = current_attempt()
    return info.run_id if info else ""


def once(name: str) -> bool:
    """Return whether this is the first call with this name in the run."""
    info = current_attempt()
    try:
        Path(folder() / f"{name}-{info.run_id if info else ''}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


async def scripted(messages: list[Any], info: Any) -> ModelResponse:
    prompt = str(messages[0].parts[-1].content)
    turn = 1 + sum(isinstance(each, ModelResponse) for each in messages)
    note("model", turn, os.getpid())
    await asyncio.sleep(PAUSE_S)
    if prompt == f"linger:{turn}":
        while not (folder() / f"go-on-{run_id()}").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(PAUSE_S)
    disturb(prompt, "model", turn)
    usage = RequestUsage(input_tokens=100 + turn, output_tokens=10)
    if turn < TURNS:
        places = range(TOOLS if turn % 2 else 1)
        calls = [ToolCallPart("look", {"turn": turn, "place": n}, tool_call_id=f"c{turn}_{n}") for n in places]
        return ModelResponse(calls, usage=usage)
    found = [part.content for each in messages for part in each.parts if isinstance(part, ToolReturnPart)]
    return ModelResponse([TextPart(json.dumps(found))], usage=usage)


async def look(ctx: RunContext[Found], turn: int, place: int) -> int:
    """Look something up, and write it into the pipeline's context."""
    number = note("tool", turn, place, os.getpid())
    ctx.deps.places.append(turn * 100 + place)
    await asyncio.sleep(PAUSE_S * (TOOLS - place) / TOOLS)
    disturb(str(ctx.prompt), "tool", number)
    return turn * 100 + place


agent = Agent(FunctionModel(scripted), name="researcher", tools=[look], deps_type=Found)
research = Pipeline(
    [Step("research", agent, config=StepConfig(durable=True, max_retries=2, timeout_s=300))], context_model=Found
)
"""The step that is disturbed."""


class SpansInFile(SpanExporter):
    """Leaves a line for each span of a call."""

    def export(self, spans: Any) -> SpanExportResult:
        for span in spans:
            if (call := span.name.partition(" ")[0]) in ("chat", "execute_tool"):
                note("span", call, os.getpid())
        return SpanExportResult.SUCCESS


spans = TracerProvider()
spans.add_span_processor(SimpleSpanProcessor(SpansInFile()))
watching = Instrumentation(settings=InstrumentationSettings(tracer_provider=spans))
watched = Agent(FunctionModel(scripted), name="researcher", tools=[look], deps_type=Found, capabilities=[watching])
traced = Pipeline(
    [Step("research", watched, config=StepConfig(durable=True, max_retries=2, timeout_s=300))], context_model=Found
)


class InBackground(FunctionModel):
    """A model whose provider works in the background, and has answered when it is asked again, in four seconds."""

    async def request(self, messages: Any, model_settings: Any, model_request_parameters: Any) -> ModelResponse:
        responses = [each for each in messages if isinstance(each, ModelResponse)]
        note("model", len(responses) + 1, os.getpid())
        if not responses:
            return ModelResponse([ToolCallPart("fetch", {}, tool_call_id="c")], usage=RequestUsage(input_tokens=1))
        if responses[-1].state == "suspended":
            return ModelResponse([TextPart("done")], provider_response_id="job")
        return ModelResponse([], provider_response_id="job", state="suspended")

    def continuation_delay(self, response: ModelResponse) -> float | None:
        return 4.0 if response.state == "suspended" else None

    async def cancel_suspended_response(self, response: ModelResponse) -> None:
        note("cancelled", os.getpid())


async def fetch() -> str:
    note("tool", "fetch", os.getpid())
    return "fetched"


background = Agent(InBackground(lambda *_: ModelResponse([])), name="patient", tools=[fetch])
job = Pipeline([Step("ask", background, config=StepConfig(durable=True, max_retries=0))])
quick = Pipeline([Step("quick", str.upper)])
