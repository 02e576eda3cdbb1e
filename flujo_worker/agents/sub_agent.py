"""An agent called in place of another or on its behalf: the call, its cost, and its events.

Whatever the sub-agent raises goes through unchanged: its pauses, aborts and limits are the calling agent's. Its spend is added to the attempt.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
from pydantic import BaseModel

from flujo_client.errors import AgentError, AgentIOValidationError, NonRetryableError, PausedException
from flujo_client.plan.identity import agent_name
from flujo_client.redact import preview, redact_tree
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.agents.call import call_agent, callee_of, recorded, timed_call
from flujo_worker.agents.contract import INPUT_INVALID, Judgement, plain
from flujo_worker.agents.factory import asks_by_library, is_pydantic_agent
from flujo_worker.agents.pricing import declared, record_usage
from flujo_worker.agents.shaping import CallOptions
from flujo_worker.agents.templated import DEFAULT_TEMPLATE, rendered
from flujo_worker.observe.log import bound, emit, emitting_once
from flujo_worker.runtime.attempt_run import AttemptRun, charge, current_run, in_thread, take_charge
from flujo_worker.runtime.call_args import accepted_kwargs, unwrap
from flujo_worker.runtime.fault_text import message_of
from flujo_worker.runtime.people import answer_to

if TYPE_CHECKING:
    from flujo_worker.agents.tool import AcceptedCall, AgentTool

_LONGEST: Final = 200


async def execute(tool: AgentTool, given: Mapping[str, Any]) -> dict[str, Any]:
    """Ask a tool's agent for another agent; what it spends is the attempt's."""
    try:
        with emitting_once():
            asking = _called(tool, given, _call_or_read_answer)
            judged: Judgement = await record_usage(asking, current_run() or AttemptRun())
    except AgentError as error:
        if type(error) is not AgentError:  # raised by the agent itself; subclasses are raised by others
            raise
        return {"success": False, "error": message_of(error)}
    return {"success": True, "output": plain(judged.value)} if judged.refusal is None else dict(judged.refusal)


async def run(tool: AgentTool, data: Any, options: CallOptions) -> AgentAnswer:
    """Ask a tool's agent for a step, whose input is the call."""
    given = {"task": data} if isinstance(data, str) else _named(data)
    answer = await _called(tool, given, partial(_call, options=options))
    judged: Judgement = answer.output
    if judged.refusal is None:
        return replace(answer, output=judged.value)
    refusal = _shown(judged.refusal)
    message = "{error}: at {path}: {validation_message}".format_map(refusal)
    if refusal["error"] == INPUT_INVALID:
        raise NonRetryableError(message, suggestion=refusal["hint"])
    misfit = AgentIOValidationError(message, suggestion=refusal["hint"])
    charge(misfit, answer.usage)
    raise misfit


async def _called(
    tool: AgentTool, given: Mapping[str, Any], perform: Callable[[AgentTool, AcceptedCall, str], Awaitable[AgentAnswer]]
) -> AgentAnswer:
    """Ask, if the call is accepted; the answer's output is the judgement of it."""
    with _call_events(tool, given):
        call = tool.accept(given)
        if isinstance(call, dict):
            _emit_refusal("input", call)
            return AgentAnswer(Judgement(None, (), call))
        if call.dropped:
            emit("agent_tool.dropped", "warning", of="input", properties=list(call.dropped))
        answer = await perform(tool, call, await in_thread(partial(_prompted, tool.agent, call)))
        judged = tool.conclude(answer.output)
        if judged.dropped:
            emit("agent_tool.dropped", "warning", of="output", properties=list(judged.dropped))
        if judged.refusal is not None:
            _emit_refusal("output", judged.refusal)
        return replace(answer, output=judged)


def _named(data: Any) -> dict[str, Any]:
    if isinstance(data, BaseModel | Mapping):
        return dict(data)
    what = f"an agent tool takes named arguments, but the step's input is a {type(data).__name__}"
    way_out = "return a mapping with a `task` from the step before, or the task alone as a text"
    raise NonRetryableError(what, suggestion=way_out)


async def _call_or_read_answer(tool: AgentTool, call: AcceptedCall, prompt: str) -> AgentAnswer:
    """Call the agent, or return what a person has answered in its place."""
    run = current_run()
    try:
        return await (_call(tool, call, prompt) if run is None else _call_recorded(run, tool, call, prompt))
    except PausedException as pause:
        given = await answer_to(pause, tool.name)
        return AgentAnswer(given, take_charge(pause))


async def _call_recorded(run: AttemptRun, tool: AgentTool, call: AcceptedCall, prompt: str) -> AgentAnswer:
    """Call an agent inside another agent's call, with the events and the accounting of any call."""
    asking = _call(tool, call, prompt)
    if asks_by_library(unwrap(tool.agent)):
        asking = recorded(asking, {"task": call.task, **call.context}, call=tool.name)
    try:
        with timed_call(tool.agent):
            return await asking
    except Exception as error:
        run.of_tool = error
        raise


async def _call(tool: AgentTool, call: AcceptedCall, prompt: str, options: CallOptions | None = None) -> AgentAnswer:
    agent, run = tool.agent, current_run()
    at_hand: dict[str, Any] = dict(options or {})
    shaping = at_hand.pop("shaping", None)
    if not is_pydantic_agent(agent):
        at_hand |= {**call.options, "context": call.context, "resources": run.resources if run else None}
    threads = run.work.threads if run and run.work else None
    answer = await call_agent(callee_of(agent), prompt, at_hand, threads=threads, shaping=shaping)
    return replace(answer, usage=declared(answer.output, answer.usage))


def _prompted(agent: Any, call: AcceptedCall) -> str:
    """Return the task alone for an agent that takes the context separately; for any other both in one prompt, which may take a while."""
    takes_context = not is_pydantic_agent(agent) and accepted_kwargs(agent, {"context": call.context})
    return call.task if takes_context else rendered(DEFAULT_TEMPLATE, call.task, call.context)


@contextmanager
def _call_events(tool: AgentTool, given: Mapping[str, Any]) -> Iterator[None]:
    """Emit a call's start and end; all events in between name their call."""
    began, run = time.monotonic(), current_run()
    known: dict[str, Any] = {"tool": tool.name}
    if run is not None:
        run.tool_calls += 1
        known |= {"tool_call": run.tool_calls, "within": structlog.contextvars.get_contextvars().get("tool_call")}
    with bound(**known):
        contracts: dict[str, Any] = {"input_contract": tool.input and tool.input.hash}
        contracts["output_contract"] = tool.output and tool.output.hash
        emit("agent_tool.called", agent=agent_name(tool.agent), provided=sorted(map(str, given)), **contracts)
        try:
            yield
        except BaseException as error:  # cancelled by the attempt's timeout, too
            emit("agent_tool.raised", error=type(error).__name__, latency_ms=_ms_since(began))
            raise
        emit("agent_tool.returned", latency_ms=_ms_since(began))


def _emit_refusal(of: str, refusal: Mapping[str, Any]) -> None:
    message = preview(_shown(refusal)["validation_message"], _LONGEST)
    data = {key: refusal[key] for key in ("path", "missing_fields", "provided_fields")}
    emit(f"agent_tool.{of}_invalid", "warning", **data, message_preview=message)


def _shown(refusal: Mapping[str, Any]) -> dict[str, Any]:
    """Return a refusal as events may show it: a checker repeats the value, which the name of its field may say to hide."""
    name = next((each for each in reversed(refusal["path"]) if isinstance(each, str)), "")
    return {**refusal, **{key: redact_tree(refusal[key], name) for key in ("validation_message", "hint")}}


def _ms_since(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 1)
