"""The reasoning precheck of one attempt: cheap gates around the agent's call, logged as events, fed back if the step says so.

It must not block the attempt, outlive its own limits of time and tokens, or turn a control-flow signal or a limit into anything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, Final

from flujo_client.contract.outcome import NO_USAGE, Usage
from flujo_client.contract.processing import PrecheckSettings
from flujo_worker.agents.call import call_agent, callee_of, timed_call
from flujo_worker.agents.previews import emit_usage, written
from flujo_worker.agents.pricing import declared
from flujo_worker.aros.precheck import (
    WRONG_KIND,
    GateFinding,
    PlanVerdict,
    agreement,
    decoded_object,
    found_at,
    lacks_basics,
    missing_keys,
    plan_in,
    verdict_of,
)
from flujo_worker.observe.log import emit
from flujo_worker.runtime.attempt_run import charge, take_charge
from flujo_worker.runtime.faults import ErrorHandler
from flujo_worker.runtime.write_context import leave_as_is, lend

MAX_FEEDBACK = 2000
"""Characters of feedback that reach a model."""

_NO_PLAN: Final = GateFinding("skipped", "no_plan")
_NO_VALIDATOR: Final = GateFinding("skipped", "no_validator")
_TIMEOUT: Final = GateFinding("skipped", "timeout")
_OVER_CAP: Final = GateFinding("skipped", "over_token_cap")


class PlanCheckValidator:
    """Asks an agent to judge a plan. It gets the text, or `{"plan", "goal"}` if there is a goal; also `max_tokens` and `resources` if it takes them."""

    def __init__(self, agent: Any, *, max_tokens: int, threads: Executor, resources: Any = None) -> None:
        self._agent, self._threads = agent, threads
        self._options = {"max_tokens": max_tokens, "resources": resources}

    async def check(self, plan: str, goal: Any = None) -> tuple[PlanVerdict, Usage]:
        """Call the agent once.

        Raises:
            TypeError: the agent's answer is not a verdict; the attempt is charged with its usage.
            Exception: any exception of the agent, unchanged.
        """
        data = plan if goal is None else {"plan": plan, "goal": goal}
        with timed_call(self._agent):
            answer = await call_agent(callee_of(self._agent), data, self._options, threads=self._threads)
        usage = declared(answer.output, answer.usage)
        try:
            return verdict_of(answer.output), usage
        except TypeError as error:
            charge(error, usage)
            raise


class Precheck:
    """The precheck of one attempt: `before` the agent's call, `after` it, and `forget` before the context is stored.

    In shadow it reports, and changes nothing.

    Attributes:
        usage: of the gates so far, whatever their results.
        feedback: added to the guidance of the next attempt, if this one fails later; None in shadow.
    """

    def __init__(
        self,
        settings: PrecheckSettings,
        *,
        context: Any,
        agent_of: Callable[[Any], Any],
        threads: Executor,
        schema: Any,
        shadow: bool,
        resources: Any = None,
    ) -> None:
        self._settings, self._context, self._schema, self._shadow = settings, context, schema, shadow
        self._agent_of, self._threads, self._resources = agent_of, threads, resources
        self._data: Any = None
        self._is_waiting = False
        self._forget: Callable[[], None] = leave_as_is
        self.usage = NO_USAGE
        self.feedback: str | None = None

    async def before(self, data: Any) -> Any:
        """Run the gates over the plan in the input; without one, `after` concludes.

        Return the input, with the guidance before it if there is some, it is a text and the step asks for that. Only control-flow signals and
        limits are raised, as an agent raised them.
        """
        settings = self._settings
        if not settings.enabled:
            return data
        self._data = data
        if missing := missing_keys(self._context, settings.required_context_keys):
            message = f"the context lacks {', '.join(missing)}"
            return self._guided(data, GateFinding("fail", "missing_context_keys", keys=missing, feedback=message))
        plan = plan_in(data, settings.delimiters)
        if plan is None:
            self._is_waiting = True
            return data
        return self._guided(data, await self._in_time(plan))

    async def after(self, text: str | None, value: Any) -> None:
        """Run the gates over the plan in the model's text if the input had none; report, and store the feedback.

        `text` is what the model wrote, before anything was taken out of it, and `value` what was decoded from it. Raises Exception: only control-flow
        signals and limits, as an agent raised them.
        """
        if not self._is_waiting:
            return
        self._is_waiting = False
        plan = None if text is None else plan_in(text, self._settings.delimiters)
        finding = self._checked(value, "the output")
        if finding is None:
            finding = _NO_PLAN if plan is None else await self._in_time(plan)
        self._conclude(finding)

    def forget(self) -> None:
        """Take the guidance out of the context again, unless the context's model declares its key."""
        self._forget()
        self._forget = leave_as_is

    async def _in_time(self, plan: str) -> GateFinding:
        """Judge a plan in the time the precheck has; one attempt judges one plan, before generation or after it."""
        try:
            async with asyncio.timeout(self._settings.timeout_s) as limit:
                finding = await self._judged(plan)
        except TimeoutError:
            if not limit.expired():
                raise
        return _TIMEOUT if limit.expired() else finding

    async def _judged(self, plan: str) -> GateFinding:
        """Judge a plan: the cheap gate first; a validator after a consensus gate only where that disagrees."""
        settings = self._settings
        if (finding := self._checked(plan, "the plan")) is not None:
            return finding
        finding = _NO_VALIDATOR
        if settings.consensus_agent is not None:
            finding = await self._unblocking("consensus_error", self._compared())
            if finding.result != "fail":
                return finding
        if settings.validator_agent is None:
            return finding
        return await self._unblocking("validator_error", self._validated(plan))

    def _checked(self, candidate: Any, what: str) -> GateFinding | None:
        """Check a candidate by the schema's basic rules; a text is a candidate if both it and the schema's type are a JSON object."""
        decoded = decoded_object(candidate) if isinstance(candidate, str) else candidate
        lacking = () if decoded is None else lacks_basics(decoded, self._schema)
        if not lacking or (lacking == WRONG_KIND and decoded is not candidate):
            return None
        message = "has another type than the schema" if lacking == WRONG_KIND else f"lacks {', '.join(lacking)}"
        return GateFinding("fail", "missing_basics", keys=lacking, feedback=f"{what} {message}")

    async def _unblocking(self, reason: str, gate: Awaitable[GateFinding]) -> GateFinding:
        """Turn an error of a gate into a skip; control flow and limits are raised."""
        try:
            return await gate
        except Exception as error:
            is_capped = self._book(reason.partition("_")[0], take_charge(error))
            if ErrorHandler().handle_error(error, "validator").action == "raise":
                raise
            return GateFinding("skipped", reason, error=type(error).__name__) if is_capped else _OVER_CAP

    async def _compared(self) -> GateFinding:
        """Sample short plans, one after another so that none is paid for after the cap, and compare them."""
        settings, texts = self._settings, []
        agent = self._agent_of(settings.consensus_agent)
        options = {"max_tokens": settings.max_tokens, "resources": self._resources}
        for _ in range(settings.consensus_samples):
            with timed_call(agent):
                answer = await call_agent(callee_of(agent), self._data, options, threads=self._threads)
            if not self._book("consensus", declared(answer.output, answer.usage)):
                return _OVER_CAP
            texts.append(plan_in(answer.output, settings.delimiters) or written(answer.output))
        score = agreement(texts)
        is_met = score >= settings.consensus_threshold
        finding = GateFinding("pass", "agreement", score) if is_met else GateFinding("fail", "disagreement", score)
        emit("reasoning.validation", **finding.figures(), gate="consensus", samples=len(texts), **self._mark)
        return finding

    async def _validated(self, plan: str) -> GateFinding:
        settings = self._settings
        goal = None if settings.goal_context_key is None else found_at(self._context, settings.goal_context_key)
        agent = self._agent_of(settings.validator_agent)
        validator = PlanCheckValidator(
            agent, max_tokens=settings.max_tokens, threads=self._threads, resources=self._resources
        )
        verdict, usage = await validator.check(plan, goal)
        if not self._book("validator", usage):
            return _OVER_CAP
        finding = verdict.finding(settings.score_threshold)
        emit("reasoning.validation", **finding.figures(), gate="validator", **self._mark)
        return finding

    @property
    def _mark(self) -> dict[str, Any]:
        return {"shadow": True} if self._shadow else {}

    def _book(self, call: str, spent: Usage) -> bool:
        """Book the spend of a call, in the events too; return whether it was within the cap."""
        self.usage += spent
        emit_usage(spent, call)
        return spent.output_tokens <= self._settings.max_tokens

    def _guided(self, data: Any, finding: GateFinding) -> Any:
        self._conclude(finding)
        settings = self._settings
        if self.feedback is None or settings.inject_feedback is None:
            return data
        if settings.inject_feedback == "prepend" and isinstance(data, str):
            return f"{settings.retry_guidance_prefix}{self.feedback}\n\n{data}"
        forget = None
        if settings.inject_feedback == "context_key":
            forget = lend(self._context, settings.context_feedback_key, self.feedback)
        if forget is None:
            emit("aros.guidance.not_injected", level="warning", inject_feedback=settings.inject_feedback)
        self._forget = forget or leave_as_is
        return data

    def _conclude(self, finding: GateFinding) -> None:
        """Emit the finding once in an attempt, and store its feedback. If only the context's keys were checked, it is about them."""
        keys = self._settings.required_context_keys
        if keys and finding in (_NO_PLAN, _NO_VALIDATOR):
            finding = GateFinding("pass", "context_keys", keys=keys)
        emit(f"aros.reasoning.precheck.{finding.result}", **finding.attributes(), **self._mark)
        if finding.feedback is not None and not self._shadow:
            self.feedback = finding.feedback[:MAX_FEEDBACK]
