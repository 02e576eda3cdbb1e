"""Pipelines that are streamed. Their models say a story in pieces; a run's input says what goes wrong on the way."""

import asyncio
import logging
import os
import signal

from acceptance_pipelines import folder
from pydantic_ai import Agent, Tool
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from flujo_client import Pipeline, Step, StepConfig, step
from flujo_client.attempt_info import current_attempt
from flujo_worker import progress, stream_text

WORDS = ["Once ", "upon ", "a ", "time ", "there ", "was ", "a ", "worker."]
PAUSE_S = 0.02
SECRET = "sk-abcdefghijklmnop1234"


def first_time(name: str) -> bool:
    """Return whether this is the first call with this name in the run."""
    info = current_attempt()
    try:
        (folder() / f"{name}-{info.run_id if info else ''}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


async def go_on_is_there() -> None:
    """Wait for the file with which a test lets the run go on."""
    info = current_attempt()
    while not (folder() / f"go-on-{info.run_id if info else ''}").exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(PAUSE_S)


async def tell(messages, info):
    """Say the story, after a call of a tool if there is one."""
    prompt = str(messages[0].parts[-1].content)
    if info.function_tools and not any(isinstance(each, ModelResponse) for each in messages):
        yield {0: DeltaToolCall("look", '{"at": "sky"}', tool_call_id="c")}
        return
    for number, word in enumerate(WORDS):
        if number == 4 and prompt.startswith("kill") and first_time("kill"):
            await (go_on_is_there() if prompt == "kill at go" else asyncio.sleep(0.3))  # until what was said is written
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 4 and prompt == "down" and first_time("down"):
            raise ModelHTTPError(503, "scripted", "overloaded")
        yield word
        await asyncio.sleep(PAUSE_S)
    if prompt == "secret":
        for piece in (" My key is s", "k", "-abcdef", "ghijklmnop", "1234", "."):
            yield piece
            await asyncio.sleep(3 * PAUSE_S)


async def look(at: str) -> str:
    """Look at something."""
    return f"the {at} is blue"


teller = Agent(FunctionModel(stream_function=tell), name="teller")
looker = Agent(FunctionModel(stream_function=tell), name="looker", tools=[look])
story = Pipeline([Step("tell", teller, StepConfig(max_retries=1))], name="story", stream=True)
tools = Pipeline([Step("tell", looker, StepConfig(durable=True, max_retries=1))], name="tools", stream=True)


@step
async def work(data: str) -> str:
    """Say, print, and tell how far it is."""
    for number in range(5):
        stream_text(f"part {number} ")
        progress(number + 1, 5, "counting")
    print("counted", number + 1)
    logging.getLogger("counting").warning("that is all")
    return data


@step
async def linger(data: str) -> str:
    """Say something, and go on when there is a file."""
    stream_text("I wait")
    await go_on_is_there()
    return data


@step
async def part(data: str) -> str:
    """Say something, and the rest when there is a file."""
    stream_text("I wait")
    await go_on_is_there()
    stream_text(" no more")
    return data


counting = Pipeline([work], name="counting", stream=True)
parting = Pipeline([part], name="parting")
lingering = Pipeline([linger], name="lingering", stream=True)
silent = Pipeline([work], name="silent")
some = Pipeline([Step("quiet", work.agent), Step("loud", work.agent, StepConfig(stream=True))], name="some")
asker = Agent(FunctionModel(stream_function=tell), name="asker", tools=[Tool(look, requires_approval=True)])
asking = Pipeline([Step("tell", asker, StepConfig(durable=True, max_retries=0))], stream=True)
beside = Pipeline([Step("work", work.agent, StepConfig(execution_mode="background"))], name="beside")


async def talk_for(who: str) -> str:
    """Say forty pieces in half a second."""
    pieces = [f"{who} {number}. " for number in range(40)]
    for piece in pieces:
        stream_text(piece)
        await asyncio.sleep(0.012)
    return "".join(pieces)


@step
async def begin(data: str) -> str:
    """Talk."""
    return await talk_for(data)


@step
async def go_on(data: str) -> str:
    """Talk of something else."""
    return await talk_for(data[:1] + "b")


talk = Pipeline([begin, go_on], name="talk", stream=True)
