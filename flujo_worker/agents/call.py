"""Call any agent: an object with `run`, a callable, a pydantic-ai agent; sync or async (FSD-11)."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from typing import Any

from flujo_client.contract.outcome import NO_USAGE
from flujo_client.errors import AgentError, NonRetryableError
from flujo_client.pipeline.authoring import as_agent
from flujo_client.pipeline.resources import deps_type_of, fits
from flujo_client.plan.identity import agent_name
from flujo_worker.agents.answer import AgentAnswer, AgentResult
from flujo_worker.agents.factory import (
    MODEL_OPTIONS,
    FlujoAgent,
    asker_of,
    asks_by_library,
    is_pydantic_agent,
    may_ask,
    service_of,
)
from flujo_worker.agents.previews import emit_response, emit_usage, preview_limit, shown
from flujo_worker.agents.pricing import usage_of
from flujo_worker.agents.shaping import Shaping, response_format
from flujo_worker.concurrency.event_loop import is_async
from flujo_worker.domain.starvation import is_starved
from flujo_worker.observe.log import emit
from flujo_worker.runtime.attempt_run import ModelCall, charge, current_run, in_thread_of
from flujo_worker.runtime.call_args import Callee, accepted_kwargs, keywords_of, unwrap
from flujo_worker.runtime.http_errors import is_outage, is_rate_refusal, is_timeout, requested_wait
from flujo_worker.runtime.units_met import meeting_units

_NOT_THE_MODELS = ("context", "guidance", "history", "resources")


def callee_of(agent: Any) -> Callee:
    """Find out how an agent is called. Raises ConfigurationError: wrappers that declare each other as `__flujo_target__`."""
    agent = as_agent(agent)
    run, asks = getattr(agent, "run", agent), asks_by_library(unwrap(agent))
    return Callee(
        agent,
        run,
        is_object=run is not agent and callable(run),
        is_library=is_pydantic_agent(agent),
        is_task=hasattr(agent, "__flujo_task__"),
        is_async=is_async(run),
        asks=asks,
        may_ask=asks or may_ask(agent),
        takes=keywords_of(agent),
        deps_type=deps_type_of(agent),
    )


async def call_agent(
    callee: Callee, data: Any, options: Mapping[str, Any], *, threads: Executor | None, shaping: Shaping | None = None
) -> AgentAnswer:
    """Call an agent once. Each of the options is passed only if the agent takes it.

    Sync agents run in `threads`, so that the event loop never waits for them; None: in the loop's default threads. `shaping` says how the output
    of agents on pydantic-ai is requested and read; others take at most a `response_format`.

    Raises the agent's exceptions unchanged; AgentError: it reports that it did not succeed; AgentIOValidationError: with `shaping`, the output is
    invalid.
    """
    agent = callee.agent
    deps = {} if callee.deps_type is None else deps_for(agent, options)
    if callee.is_library:
        from flujo_worker.agents.model_call import ask_model

        own = {"guidance": options.get("guidance"), "history": options.get("history"), **deps}
        model_options = {key: value for key, value in options.items() if key not in _NOT_THE_MODELS}
        return await ask_model(agent, data, options=model_options, shaping=shaping, **own)
    if callee.is_task:
        from flujo_worker.agents.task_call import call_task

        task = agent.with_arguments(options.get("context"))
        return await answered(partial(call_task, task, data), threads=threads)
    keywords = {} if callee.takes.is_empty else callee.takes.chosen({**options, **deps})
    if dropped := [name for name in MODEL_OPTIONS if options.get(name) is not None and name not in keywords]:
        emit("agent.option.dropped", "warning", options=dropped, agent=agent_name(agent))
    if shaping is not None:
        keywords |= _shaped(agent, keywords, shaping)
    return await answered(partial(callee.run, data, **keywords), is_async=callee.is_async, threads=threads)


async def answered(call: Callable[[], Any], *, is_async: bool = False, threads: Executor | None) -> AgentAnswer:
    """Make a call that is ready, in a thread unless it is async; see `call_agent`."""
    if is_async:
        given = await call()
    else:
        given = await in_thread_of(threads, call)
        given = await given if inspect.isawaitable(given) else given
    if isinstance(given, AgentResult) and not given.success:
        error = AgentError(given.error or "the agent reports that it could not do its task")
        charge(error, given.usage)
        raise error
    if type(given).__module__.startswith("pydantic_ai.") and hasattr(given, "output"):  # what its `run` returns
        return AgentAnswer(given.output, usage_of(given.usage, getattr(given, "response", None)))
    return given if isinstance(given, AgentAnswer) else AgentAnswer(given)


def _shaped(agent: Any, keywords: Mapping[str, Any], shaping: Shaping) -> dict[str, Any]:
    """Choose the arguments that describe to the agent the output that is wanted; `shaping` itself is for our own agents only."""
    target = unwrap(agent)
    if isinstance(asker_of(target), FlujoAgent):
        return accepted_kwargs(agent, {"shaping": shaping})
    return response_format(agent, target, keywords, shaping)


def deps_for(agent: Any, at_hand: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword argument for an agent's deps, if it has any; raises NonRetryableError if nothing at hand is of the agent's `deps_type`."""
    wanted = deps_type_of(agent)
    if wanted is None:
        return {}
    given = [at_hand[name] for name in ("resources", "context") if at_hand.get(name) is not None]
    for each in given:
        if fits(each, wanted):
            return {"deps": each}
    found = " and ".join(type(each).__name__ for each in given) or "nothing"
    what = f"agent '{agent_name(agent)}' needs deps of type {getattr(wanted, '__name__', wanted)}, but this attempt has {found}"
    way_out = "make them with the pipeline's `resources`, or use that type as its context_model"
    raise NonRetryableError(what, suggestion=way_out, code="NO_DEPS")


async def recorded(asking: Awaitable[AgentAnswer], data: Any, *, call: str = "agent") -> AgentAnswer:
    """Await a call (whose, says `call`) that asks a model; emit input, answer, why the model stopped, and the cost, also if it fails."""
    if most := preview_limit():
        emit("agent.input", "debug", input_preview=shown(data, most))
    try:
        answer = await asking
    except Exception as error:
        run = current_run()
        emit_usage(NO_USAGE if run is None else run.charge_of(error), call)
        raise
    emit_response(answer.output, answer.finish_reason)
    emit_usage(answer.usage, call)
    return answer


@contextmanager
def timed_call(agent: Any, *, most_s: float | None = None) -> Iterator[None]:
    """Record the result of an agent's call, if its model is known.

    A cancelled call is not evidence about its model, and neither is a timeout of a process that was starved. An error of another agent,
    called inside as a tool, is not a failure of this one. A timeout after `most_s` seconds is the model's. Answers from record are none.
    """
    run, model = current_run(), service_of(agent)
    if run is None or model is None:
        yield
        return
    calls, began, late_s = run.calls, time.monotonic(), run.late_s()
    try:
        with meeting_units(is_call=True) as met:
            yield
    except Exception as error:
        seconds = time.monotonic() - began
        if met.has_asked_no_model or (is_timeout(error) and is_starved(seconds, run.late_s() - late_s)):
            raise
        is_late = isinstance(error, TimeoutError) and most_s is not None and seconds >= most_s
        is_anothers = any(each.raised is error for each in calls)
        by_library = asks_by_library(agent)
        failed = not is_anothers and (is_late or is_outage(error, by_library=by_library))
        refused = not (is_anothers or failed) and is_rate_refusal(error, by_library=by_library)
        asked_s = requested_wait(error) if refused or failed else None
        calls.append(ModelCall(model, seconds, failed=failed, refused=refused, asked_s=asked_s, raised=error))
        raise
    if not met.has_asked_no_model:
        calls.append(ModelCall(model, time.monotonic() - began))
