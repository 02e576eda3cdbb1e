"""Agents that are no pydantic-ai agents: a `response_format` for those that take one by its name, and no other trace."""

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import wraps

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.function import FunctionModel
from structlog.testing import capture_logs

from flujo_client.serial import digest
from flujo_worker.agents import make_agent_async
from flujo_worker.agents.call import call_agent, callee_of
from flujo_worker.agents.scripted import scripted_model
from flujo_worker.agents.shaping import Shaping

OWN = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
HINT = {"type": "json_schema", "json_schema": {"name": "review_step", "schema": OWN, "strict": False}}


def unread(raw, schema, origin=None):
    raise AssertionError("nobody here is read inside the call")


def shaping(mode="auto", schema=OWN, *, shadow=False):
    return Shaping(mode, "review_step", schema, shadow, unread)


@pytest.fixture(scope="module")
def threads():
    with ThreadPoolExecutor(1) as threads:
        yield threads


@pytest.fixture
def call(threads):
    def call(agent, shaping, **options):
        with capture_logs() as told:
            answer = asyncio.run(call_agent(callee_of(agent), "in", options, threads=threads, shaping=shaping))
        return answer, [(each["event"], each.get("reason")) for each in told]

    return call


def takes(data, response_format=None, temperature=None):
    return response_format


class Holder:
    async def run(self, data, *, response_format=None, **rest):
        return response_format or rest


@wraps(takes)
def wrapped(*args, **rest):
    return takes(*args, **rest)


@pytest.mark.parametrize("agent", [takes, Holder(), wrapped])
@pytest.mark.parametrize("mode", ["auto", "openai_json"])
def test_who_takes_it_by_name_is_given_it(call, agent, mode):
    """M-060, M-069, M-070: under the step's name; what it does with it is its own affair, so nothing is told as applied."""
    answer, told = call(agent, shaping(mode))
    assert answer.output == HINT
    assert told == [("aros.soe.enabled", None)]
    assert answer.is_shaped is False


def test_what_is_told_names_form_and_hash(threads):
    """M-067, M-156."""
    with capture_logs() as told:
        asyncio.run(call_agent(callee_of(takes), "in", {}, threads=threads, shaping=shaping()))
    assert (told[0]["mode"], told[0]["form"], told[0]["schema_hash"]) == ("auto", "json_schema", digest(OWN))


@pytest.mark.parametrize(
    "agent", [lambda data: data, lambda data, **rest: rest or "in", lambda response_format: response_format, len]
)
def test_who_does_not_take_it_by_name_is_left_alone(call, agent):
    """M-069: `**kwargs` says nothing of what a name means."""
    answer, told = call(agent, shaping())
    assert answer.output in ("in", 2)
    assert told == [("aros.soe.skipped", "unsupported_agent")]


@pytest.mark.parametrize("agent", [takes, lambda data: data])
def test_without_a_schema_there_is_nothing_to_pass_or_tell(call, agent):
    """M-069."""
    answer, told = call(agent, shaping(schema=None))
    assert (answer.output, told) == (agent("in"), [])


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        (shaping("off"), []),
        (shaping(shadow=True), [("aros.soe.skipped", "shadow")]),
        (shaping("outlines"), [("grammar.applied", None), ("aros.soe.skipped", "experimental")]),
        (None, []),
    ],
)
def test_nothing_is_passed_that_is_not_wanted(call, wish, told):
    """M-065, C-41."""
    answer, heard = call(takes, wish)
    assert (answer.output, heard) == (None, told)


def test_a_format_of_the_callers_own_stays(call):
    answer, told = call(takes, shaping(), response_format="mine")
    assert (answer.output, told) == ("mine", [("aros.soe.skipped", "caller_response_format")])


def test_the_shaping_itself_never_reaches_a_users_agent(call):
    """M-069."""
    answer, _ = call(Holder(), shaping(), shadow="mine")
    assert answer.output == HINT


async def read(raw, schema, origin=None):
    return raw


def test_an_agent_that_is_ours_is_read_inside(call):
    ours = make_agent_async(lambda: scripted_model(lambda _: '{"ok": true}'))
    answer, told = call(ours, Shaping("auto", "review_step", OWN, shadow=False, read=read))
    assert (answer.output, answer.is_shaped, answer.model) == ({"ok": True}, True, "scripted")
    assert told == [("aros.soe.enabled", None), ("grammar.applied", None)]


def test_a_model_that_was_overridden_by_one_that_can_do_less_still_runs(call):
    """M-061: pydantic-ai refuses before anything is asked, so the step runs as without."""
    agent = Agent(scripted_model(lambda _: "never"), retries=0)
    weak = FunctionModel(scripted_model(lambda _: "text").function, profile={"supports_json_schema_output": False})
    with agent.override(model=weak):
        answer, told = call(agent, Shaping("auto", "review_step", OWN, shadow=False, read=read))
    assert (answer.output, answer.is_shaped) == ("text", False)
    assert told == [("aros.soe.skipped", "unsupported_provider")]


@pytest.mark.processes
def test_the_agents_are_imported_without_pydantic_ai():
    """A client imports pipelines without it."""
    code = "import sys, flujo_worker.agents, flujo_worker.agents.call; sys.exit('pydantic_ai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
