"""Ask a model once, through a pydantic-ai agent: the one call below a step's attempt.

It must not try again, and leaves nothing out in silence. In: an agent of the library's, an input and model settings. Out: an `Answer`,
with what it spent.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from flujo_client.errors import ConfigurationError
from flujo_client.plan.identity import model_name
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.agents.previews import hidden, preview_limit, text_of
from flujo_worker.agents.pricing import require_price, usage_of
from flujo_worker.agents.shaping import Shaping
from flujo_worker.concurrency.native import executor_beside
from flujo_worker.runtime.attempt_run import Work, charge, current_run, current_work, in_thread
from flujo_worker.traces.live import headers

if TYPE_CHECKING:
    from pydantic_ai.agent import AbstractAgent

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
    from pydantic_ai.usage import RunUsage

    from flujo_worker.agents.models import asking, effective_model
    from flujo_worker.agents.response_check import ResponseCheck
    from flujo_worker.agents.turns import Turns

    model, work, streamed = await effective_model(agent), current_work(), _streamed()
    if streamed is not None and model is not None:
        model = streamed.model(model)
    check = ResponseCheck((work and work.step.config.accept_finish_reasons) or ())
    require_price(model)
    spent, settings = RunUsage(), _settings(agent, model, options)
    prompt = await in_thread(functools.partial(prompt_of, data, guidance, history))
    durable = _durable(agent, work)
    turns = Turns() if work is None else Turns.of(work.step)
    around = [
        check,
        *turns.history,
        *([] if streamed is None else [streamed]),
        *(durable or ()),
        *_around(data, guidance, history, paces=durable is None),
    ]

    async def run(*, capabilities: Sequence[Any], **rest: Any) -> Any:
        fixed = {"model": model, "model_settings": settings, "usage": spent, "instructions": instructions, "deps": deps}
        fixed |= {"infer_name": False, "usage_limits": turns.limits}  # the name, from a variable of ours
        executor = executor_beside(asyncio.get_running_loop())
        with asking(model), nullcontext() if executor is None else agent.using_thread_executor(executor):
            return await agent.run(prompt, capabilities=[*capabilities, *around], **fixed, **rest)

    run_so_far = current_run()
    units = (
        None if run_so_far is None or durable is None else run_so_far.journal
    )  # what is on record was paid for before
    try:
        result, is_shaped = await _run(agent, run, settings, shaping)
    except Exception as error:
        raised = turns.explained(check.explained(error))
        charge(raised, usage_of(spent, asked=model_name(agent)) if units is None else units.payments.take_spent())
        if raised is error:
            raise
        raise raised from None
    response = result.response
    return AgentAnswer(
        result.output,
        usage_of(spent, response, model_name(agent)) if units is None else units.payments.take_spent(),
        model=response.model_name,
        is_shaped=is_shaped,
        finish_reason=response.finish_reason,
    )


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


def _around(data: Any, guidance: str | None, history: str | None, *, paces: bool) -> list[Any]:
    """Return the capabilities that pace requests, in an attempt that is paced, and log them, if prompts are logged."""
    run, most = current_run(), preview_limit()
    pace = run.pace if run is not None and paces else None
    if pace is None and not most:
        return []
    from flujo_worker.agents.requests import Paced, RequestEvents

    paced = [] if pace is None else [Paced(pace)]
    return [*paced, *([RequestEvents(prompt_of(hidden(data), guidance, _shown(history)), most)] if most else ())]


def _shown(history: str | None) -> str | None:
    """Return a history as events may show it. The attempt hides its own secrets: names in JSON inside JSON are not recognized."""
    run = current_run()
    own = None if run is None else run.history
    return own.shown if own is not None and own.text == history else history


def _settings(agent: Any, model: Any, options: Mapping[str, Any]) -> Any:
    """Make a run's model settings, and report which of them the model ignores."""
    from flujo_worker.agents.models import dropped_by, each_of, without_retries

    settings = {key: value for key, value in options.items() if value is not None}
    own = getattr(agent, "model_settings", None)
    for each in [] if model is None else each_of(model):
        if dropped := dropped_by(each, {**(own if isinstance(own, dict) else {}), **settings}):
            emit_dropped_options(dropped, model=each.model_name)
    return settings if model is None else without_retries(model, _traced(settings, own, model))


def _traced(settings: dict[str, Any], own: Any, model: Any) -> dict[str, Any]:
    """Add the header that continues the attempt's trace, if traces are exported, to the headers of a run; they replace the agent's and the model's."""
    from flujo_worker.agents.models import dropped_by, each_of

    trace, known = headers(), [getattr(model, "settings", None), own, settings]
    if not trace or any(dropped_by(each, {"extra_headers": trace}) for each in each_of(model)):
        return settings
    for each in known:
        trace |= each.get("extra_headers") or {} if isinstance(each, dict) else {}
    return {**settings, "extra_headers": trace}


def emit_dropped_options(options: Sequence[str], **by: Any) -> None:
    """Report options that were given and ignored, and who dropped them: `agent` or `model`."""
    from flujo_worker.observe.log import emit

    emit("agent.option.dropped", "warning", options=list(options), **by)


async def _run(agent: Any, run: Callable[..., Any], settings: Mapping[str, Any], shaping: Shaping | None) -> Any:
    if shaping is None:
        from flujo_worker.agents.outputs import Bounded

        return await run(capabilities=[Bounded()]), False
    from flujo_worker.agents.structured import run_shaped

    return await run_shaped(agent, shaping, settings, run)


def prompt_of(data: Any, guidance: str | None, history: str | None = None) -> str:
    """Write what a model is asked: a text as it is, anything else as JSON.

    The conversation so far comes before it, and why the previous attempt was not accepted after it.
    """
    text = text_of(data) if history is None else f"{history}\n\n{text_of(data)}"
    return text if guidance is None else f"{text}\n\nYour previous answer was not accepted: {guidance}"
