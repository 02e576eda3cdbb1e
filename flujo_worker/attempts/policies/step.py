"""An agent step: prompt processors → precheck → agent → AROS → output processors → plugins → validators → context (M-049).

Each failure keeps the domain it came from (C-01, C-02). A plugin may send the input to another agent: its answer goes the same way from
AROS on, under what is left of the attempt's time.
"""

from __future__ import annotations

import re
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from flujo_client.contract.outcome import Usage
from flujo_client.errors import InfiniteRedirectError, PluginError
from flujo_client.pipeline.compiled_text import Templated
from flujo_client.pipeline.identity import agent_name, identify
from flujo_worker.agents.call import call_agent
from flujo_worker.agents.call_events import record_answer, recording_call
from flujo_worker.agents.call_stats import timed_call
from flujo_worker.agents.factory import model_of
from flujo_worker.agents.pricing import declared
from flujo_worker.agents.shaping import Shaping
from flujo_worker.attempts.blame import adding_usage, bounded, in_error_domain
from flujo_worker.attempts.checks import Redirect, consult_plugins, consult_validators
from flujo_worker.attempts.conversation import history_of, said
from flujo_worker.attempts.output import processed, shaped
from flujo_worker.attempts.precheck import Precheck
from flujo_worker.attempts.remembering import remember
from flujo_worker.attempts.shape import OutputParser
from flujo_worker.event_loop import within
from flujo_worker.observe.log import bound, emit
from flujo_worker.runtime.attempt_context import attempt_context
from flujo_worker.runtime.work import Done, StageError, Work
from flujo_worker.runtime.write_context import absorb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable

    from flujo_client.pipeline.step import Step
    from flujo_worker.agents.answer import AgentAnswer

T = TypeVar("T")
_LONGEST_NAME = 64
"""Characters of a schema's name, by OpenAI's rules, which are the narrowest."""


async def perform_step(work: Work) -> Done:
    """Run one attempt of an agent step.

    Raises:
        Stumble: what failed, and in which domain.
    """
    step, began = work.step, time.monotonic()
    async with in_error_domain("agent", Usage(), work.timeout_s):
        work = replace(work, history=await history_of(work))
    with attempt_context(work):
        prompt, answer = await _first(work)
        answer = await _passed(work, prompt, answer, began)
        async with bounded("validator", answer.usage, work.timeout_s):
            await consult_validators(work, answer.output)
    async with in_error_domain("system", answer.usage):
        for reply, value in work.notes.replies:
            work = replace(work, context=remember(work, reply, value))
        context = said(work, answer.output, absorb(step, answer.output, work.context))
        return Done(answer.output, context, answer.usage)


async def _first(work: Work) -> tuple[Any, AgentAnswer]:
    """Ask the step's own agent; give the prompt too, for those that are asked after it.

    As far as this goes an attempt's failures are tried again, those of what judges the answer are not.
    """
    async with _shape_of(work) as shape:
        async with bounded("agent", Usage(), work.timeout_s):
            prompt = await processed(work.step.processors.prompt_processors, input_of(work), work)
        answer = await (_ask(work, prompt) if shape is None else _ask_prechecked(work, prompt, shape))
        return prompt, await _finished(work, answer)


def input_of(work: Work) -> Any:
    """What the step's agent gets: its input, or what the template of it gives."""
    return work.data if work.step.input is None else Templated(work.step.input)(work.data, work.context)


async def _passed(work: Work, prompt: Any, answer: AgentAnswer, began: float) -> AgentAnswer:
    """Ask the plugins; as long as one sends the prompt to another agent, ask that one, and all plugins again."""
    tried = [identify(work.agent)]
    while True:
        async with bounded("plugin", answer.usage, work.timeout_s):
            verdict = await consult_plugins(work, answer.output)
            if not isinstance(verdict, Redirect):
                return replace(answer, output=verdict)
            agent = _untried(work, verdict, tried)
        emit("step.redirected", plugin=verdict.plugin, agent=agent_name(agent), feedback=verdict.feedback)
        other = replace(work, agent=agent, guidance=verdict.feedback or work.guidance)
        with adding_usage(answer.usage):
            given = await _redirected(other, prompt, time.monotonic() - began)
        answer = replace(given, usage=answer.usage + given.usage)


def _untried(work: Work, redirect: Redirect, tried: list[dict[str, Any]]) -> Any:
    """Find the agent that a plugin wants, unless the attempt would go in circles."""
    agent = work.agent_of(redirect.agent)
    if not (callable(agent) or callable(getattr(agent, "run", None))):
        raise PluginError(f"{redirect.plugin}: redirect_to is a {type(agent).__name__}, no agent")
    identity = identify(agent)
    if identity in tried:
        raise InfiniteRedirectError(
            f"step '{work.step.name}': plugin {redirect.plugin} redirects to {agent_name(agent)}, which was tried already",
            suggestion="let the plugin refuse when there is no other agent to try",
        )
    tried.append(identity)
    return agent


async def _redirected(work: Work, prompt: Any, spent_s: float) -> AgentAnswer:
    async with _shape_of(work) as shape:
        if shape is None:
            answer = await _ask(work, prompt, spent_s=spent_s)
        else:
            answer, output = await _ask_shaped(work, prompt, shape, spent_s)
            answer = replace(answer, output=output)
        return await _finished(work, answer)


async def _finished(work: Work, answer: AgentAnswer) -> AgentAnswer:
    """Pass an answer through the user's own processors."""
    own, tells = work.step.processors.output_processors, work.processing is not None
    async with bounded("agent", answer.usage, work.timeout_s):
        output = await processed(own, answer.output, work, tells=tells)
    return replace(answer, output=output)


@asynccontextmanager
async def _shape_of(work: Work) -> AsyncIterator[OutputParser | None]:
    """How this agent's output is read, with agent and model bound to what is told meanwhile; None where AROS is not to act."""
    if work.processing is None:
        yield None
        return
    async with in_error_domain("agent", Usage()):
        agent, model = agent_name(work.agent), model_of(work.agent)
    shape = OutputParser(work.processing, step=work.step.name, agent=agent, model=model, threads=work.threads)
    try:
        with bound(agent=agent, model=model):
            yield shape
    finally:
        work.notes.corrections.extend(shape.corrections)


async def _ask(work: Work, data: Any, shaping: Shaping | None = None, *, spent_s: float = 0.0) -> AgentAnswer:
    left_s = max(0.0, work.timeout_s - spent_s)
    async with in_error_domain("agent", Usage(), work.timeout_s):
        told = {"guidance": work.guidance, "history": work.history and work.history.text}
        options = {**work.at_hand, **told, **work.step.config.options()}
        with timed_call(work.agent, most_s=left_s), recording_call(work):
            asked = call_agent(work.agent, data, options, threads=work.threads, shaping=shaping)
            answer = await _in_time(left_s, work, asked)
        record_answer(work, answer)
    return answer


async def _in_time(left_s: float, work: Work, call: Awaitable[AgentAnswer]) -> AgentAnswer:
    """Give an agent's answer; one that comes too late is a timeout that has cost what the answer has."""
    answer = None
    try:
        async with within(left_s, lambda error: StageError(error, "agent", timeout_s=work.timeout_s)):
            answer = await call
            answer = replace(answer, usage=declared(answer.output, answer.usage))
    except TimeoutError as error:
        if answer is not None:
            error.flujo_usage = answer.usage  # type: ignore[attr-defined]
        raise
    return answer


async def _ask_shaped(work: Work, data: Any, shape: OutputParser, spent_s: float) -> tuple[AgentAnswer, Any]:
    """Ask, and read: the answer as it came, and the output it stands for."""
    answer = await _ask(work, data, _shaping(work.step, shape), spent_s=spent_s)
    async with in_error_domain("agent", answer.usage):
        return answer, await shaped(answer, work.agent, shape)


async def _ask_prechecked(work: Work, data: Any, shape: OutputParser) -> AgentAnswer:
    """Ask with all of AROS: precheck, structured output, reading."""
    wanted = shape.settings
    check = Precheck(
        replace(wanted.precheck, timeout_s=min(wanted.precheck.timeout_s, work.timeout_s)),
        context=work.context,
        agent_of=work.agent_of,
        threads=work.threads,
        schema=wanted.schema,
        shadow=wanted.shadow,
        resources=work.resources,
    )
    try:
        answer = await _checked(work, data, check, shape)
    except StageError as stumble:
        raise StageError(stumble.error, stumble.during, check.usage + stumble.usage, stumble.timeout_s) from stumble
    finally:
        check.forget()
        work.notes.guidance = check.feedback
    return replace(answer, usage=answer.usage + check.usage)


async def _checked(work: Work, data: Any, check: Precheck, shape: OutputParser) -> AgentAnswer:
    began = time.monotonic()
    async with bounded("agent", Usage(), work.timeout_s):
        data = await _counted(check.before(data), Usage())
    try:
        answer, output = await _ask_shaped(work, data, shape, time.monotonic() - began)
    except StageError:
        await check.after(None, None)
        raise
    async with bounded("agent", answer.usage, work.timeout_s):
        said = answer.output if isinstance(answer.output, str) else None
        await _counted(check.after(shape.raw or said, output), answer.usage)
    return replace(answer, output=output)


def _shaping(step: Step, shape: OutputParser) -> Shaping:
    wanted, mode = shape.settings, shape.settings.structured_output
    if mode == "openai_json" and "structured_output" not in (step.processing or {}):
        mode = "auto"  # a project's default asks for JSON where it is expected; only a step's own word makes a text agent give it
    name = re.sub(r"[^A-Za-z0-9_-]", "_", step.name)[:_LONGEST_NAME]
    return Shaping(mode, name, wanted.schema, wanted.shadow, shape.read, reads=shape.changes)


async def _counted(work: Awaitable[T], usage: Usage) -> T:
    """What a precheck spent stands in its own sum, whatever its error says; `usage` is what was spent besides."""
    try:
        return await work
    except Exception as error:
        error.flujo_usage = usage  # type: ignore[attr-defined]
        raise
