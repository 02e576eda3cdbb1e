"""Ask a model once, through a pydantic-ai agent: the one call below a step's attempt. Imported late, for it imports pydantic-ai."""

from __future__ import annotations

import asyncio
import functools
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.usage import RunUsage, UsageLimits

from flujo_client.contract.outcome import Usage
from flujo_client.errors import ConfigurationError, NonRetryableError
from flujo_client.pipeline.step import Step
from flujo_client.plan.identity import model_name
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.agents.models import asking, dropped_by, each_of, effective_model, without_retries
from flujo_worker.agents.previews import hidden_start, preview_limit, text_of
from flujo_worker.agents.pricing import require_price, usage_of
from flujo_worker.agents.requests import RequestEvents, Requests
from flujo_worker.agents.response_check import ResponseCheck
from flujo_worker.agents.shaping import Shaping
from flujo_worker.agents.structured import run_shaped
from flujo_worker.concurrency.native import executor_beside
from flujo_worker.domain.budget import BYTES_PER_TOKEN
from flujo_worker.observe.log import emit
from flujo_worker.runtime.attempt_run import Work, charge, current_run, current_work, in_thread
from flujo_worker.traces.live import headers

if TYPE_CHECKING:
    from flujo_worker.agents.streamed import Streamed

_DURABILITY: Final = "flujo_worker.agents.durability"
"""Imported by a durable step, and by who gives an agent the capability itself."""


async def ask_model(  # noqa: PLR0913 - what one call of a model takes
    agent: AbstractAgent[Any, Any],
    data: Any,
    *,
    guidance: str | None = None,
    history: str | None = None,
    options: Mapping[str, Any],
    shaping: Shaping | None = None,
    instructions: str | None = None,
    deps: Any = None,
) -> AgentAnswer:
    """Run a pydantic-ai agent once; its usage is on the answer, or the attempt is charged with it.

    A model setting that is None is not set; one that the model does not send is reported as `agent.option.dropped`. Without `shaping` the
    agent runs unchanged. The rest is as for `FlujoAgent.run`. Raises PricingNotConfiguredError: costs are strict and the model has no
    price; it is not called.
    """
    model, work, run_so_far, streamed = await effective_model(agent), current_work(), current_run(), _streamed()
    if streamed is not None and model is not None:
        model = streamed.model(model)
    check = ResponseCheck((work and work.step.config.accept_finish_reasons) or ())
    require_price(model)
    spent, settings = RunUsage(), _settings(agent, model, options)
    write = functools.partial(prompt_of, data, guidance, history)
    prompt = write() if isinstance(data, str) else await in_thread(write)  # large data takes long to write
    durable = _durable(agent, work)
    turns, live = Turns(None if work is None else work.step), [] if streamed is None else [streamed]
    pace = None if run_so_far is None or durable is not None else run_so_far.pace
    requests = Requests(check, pace=pace, events=_events(data, guidance, history), reads_output=shaping is not None)
    around = [requests, *turns.history, *live, *(durable or ())]

    async def run(*readers: Any, **rest: Any) -> Any:
        fixed = {"model": model, "model_settings": settings, "usage": spent, "instructions": instructions, "deps": deps}
        fixed |= {"infer_name": False, "usage_limits": turns.limits}  # the name, from a variable of ours
        executor = executor_beside(asyncio.get_running_loop())
        with asking(model), nullcontext() if executor is None else agent.using_thread_executor(executor):
            return await agent.run(prompt, capabilities=[*readers, *around], **fixed, **rest)

    # Recorded units were paid for by earlier attempts.
    units = None if run_so_far is None or durable is None else run_so_far.journal

    def used(response: Any = None) -> Usage:
        return usage_of(spent, response, model_name(agent)) if units is None else units.payments.take_spent()

    try:
        if shaping is None:
            result, is_shaped = await run(), False
        else:
            result, is_shaped = await run_shaped(agent, shaping, settings, run)
    except Exception as error:
        raised = turns.explained(check.explained(error))
        charge(raised, used())
        if raised is error:
            raise
        raise raised from None
    output, response = result.output, result.response
    return AgentAnswer(output, used(response), response.model_name, is_shaped, response.finish_reason)


def _streamed() -> Streamed | None:
    """Return what streams this call: that of the step's own agent, in an attempt that is streamed."""
    run = current_run()
    if run is None or not run.answers_live or run.stream is None:
        return None
    from flujo_worker.agents.streamed import Streamed

    run.answers_live = False
    return Streamed(run.stream)


def _durable(agent: Any, work: Work | None) -> Sequence[Any] | None:
    """Return what makes an agent's calls units on record: nothing where the agent does so itself; None where they are none."""
    if work is None or not (work.step.config.durable or _DURABILITY in sys.modules):
        return None
    try:
        from flujo_worker.agents.durability import FlujoDurability, StepDurability
        from flujo_worker.agents.unit_operations import current_journal
    except ImportError:
        what = f"step '{work.step.name}' is durable, which needs pydantic-ai 2.62 or newer, and here is {version('pydantic-ai-slim')}"
        raise ConfigurationError(what, suggestion="pip install -U 'pydantic-ai-slim>=2.62'") from None

    is_own = FlujoDurability.from_agent(agent) is not None
    if not (is_own or work.step.config.durable) or current_journal() is None:
        return None
    name = agent.name or work.step.name
    return [] if is_own else [StepDurability(name=name, fingerprint=work.step.config.fingerprint)]


def _events(data: Any, guidance: str | None, history: str | None) -> RequestEvents | None:
    most = preview_limit()
    return RequestEvents(prompt_of(hidden_start(data, most), guidance, _shown(history)), most) if most else None


def _shown(history: str | None) -> str | None:
    """Return a history as events may show it. The attempt hides its own secrets: names in JSON inside JSON are not recognized."""
    run = current_run()
    own = None if run is None else run.history
    return own.shown if own is not None and own.text == history else history


def _settings(agent: Any, model: Any, options: Mapping[str, Any]) -> Any:
    """Make a run's model settings, and report which of them the model ignores."""
    settings = {key: value for key, value in options.items() if value is not None}
    own = getattr(agent, "model_settings", None)
    for each in [] if model is None else each_of(model):
        if dropped := dropped_by(each, {**(own if isinstance(own, dict) else {}), **settings}):
            emit("agent.option.dropped", "warning", options=dropped, model=each.model_name)
    return settings if model is None else without_retries(model, _traced(settings, own, model))


def _traced(settings: dict[str, Any], own: Any, model: Any) -> dict[str, Any]:
    """Add the header that continues the attempt's trace, if traces are exported, to the headers of a run; they replace the agent's and the model's."""
    trace, known = headers(), [getattr(model, "settings", None), own, settings]
    if not trace or any(dropped_by(each, {"extra_headers": trace}) for each in each_of(model)):
        return settings
    for each in known:
        trace |= each.get("extra_headers") or {} if isinstance(each, dict) else {}
    return {**settings, "extra_headers": trace}


def prompt_of(data: Any, guidance: str | None, history: str | None = None) -> str:
    """Write what a model is asked, the conversation so far before it, and why the previous attempt was not accepted after it."""
    text = text_of(data) if history is None else f"{history}\n\n{text_of(data)}"
    return text if guidance is None else f"{text}\n\nYour previous answer was not accepted: {guidance}"


class Turns:
    """The bounds that a step gives its agent: the library's limits, and the capability that shortens the conversation."""

    def __init__(self, step: Step | None) -> None:
        self._step = step
        most, tokens = (None, None) if step is None else (step.config.max_turns, step.config.history_max_tokens)
        self.limits = None if most is None else UsageLimits(request_limit=most)
        self.history: list[Any] = []
        if tokens is not None:
            self.history.append(ProcessHistory[Any](lambda messages: shortened(messages, tokens)))

    def explained(self, error: Exception) -> Exception:
        """Return what to raise for an agent's error: after too many turns, one that names the step and is not retried."""
        if self._step is None or self.limits is None or not isinstance(error, UsageLimitExceeded):
            return error
        most = self.limits.request_limit
        what = f"the agent of step '{self._step.name}' has made {most} requests without an answer, as many as max_turns allows"
        return NonRetryableError(what, suggestion="raise max_turns, or give the agent less to do", code="MAX_TURNS")


def shortened(messages: Sequence[ModelMessage], most: int) -> list[ModelMessage]:
    """Return a conversation of about so many tokens: its beginning, and the latest turns that fit, at least one. A turn begins with an answer."""
    starts = [place for place, each in enumerate(messages) if isinstance(each, ModelResponse)]
    sizes = [math.ceil(len(ModelMessagesTypeAdapter.dump_json([each])) / BYTES_PER_TOKEN) for each in messages]
    if sum(sizes) <= most or not starts:
        return list(messages)
    begin = starts[0]
    fitting = (start for start in starts[:-1] if sum(sizes[:begin] + sizes[start:]) <= most)
    return [*messages[:begin], *messages[next(fitting, starts[-1]) :]]
