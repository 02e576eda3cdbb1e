"""One attempt of an agent step, stage by stage: `STAGES` is the path of its data, from top to bottom.

Every stage has a name for its failures, and most are bounded by the attempt's time. A plugin may redirect the prompt to another agent: its
answer passes the stages `REDIRECTED`, in the remaining time. Exceptions pass through; `outcome.py` makes a fault of them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flujo_client.errors import AgentIOValidationError, InfiniteRedirectError, PluginError
from flujo_client.pipeline.annotations import typed_input
from flujo_client.pipeline.compiled_text import Templated
from flujo_client.pipeline.function_marks import is_answer_reader
from flujo_client.pipeline.step import Step
from flujo_client.plan.identity import agent_name, identify
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.agents.call import call_agent, callee_of, recorded, timed_call
from flujo_worker.agents.factory import model_of
from flujo_worker.agents.pricing import declared
from flujo_worker.agents.shaping import Shaping
from flujo_worker.attempts.checks import (
    Processed,
    Redirect,
    check_invariants,
    consult_plugins,
    consult_validators,
    emit_judgement,
    name_of,
    processed,
)
from flujo_worker.attempts.conversation import history_of, record_turn, remember
from flujo_worker.attempts.shape_events import emit_custom, emit_refusal
from flujo_worker.concurrency.event_loop import is_cancelled, within
from flujo_worker.observe.log import bound, emit
from flujo_worker.runtime.attempt_run import AttemptRun, Done, Work, judging
from flujo_worker.runtime.faults import During
from flujo_worker.runtime.write_context import written

if TYPE_CHECKING:
    from flujo_worker.attempts.correction import FinalCheck, OutputCorrection
    from flujo_worker.attempts.precheck import Precheck
    from flujo_worker.attempts.shape import OutputParser

_NOTHING: Final = nullcontext()
_LONGEST_NAME: Final = 64
"""Characters of a schema's name, by OpenAI's rules, which are the narrowest."""


class StepAttempt:
    """One attempt of an agent step, on its way through the stages.

    Attributes:
        callee: the agent to call: the step's own, or the one to which a plugin redirects the prompt; `guidance` goes with it.
        prompt: the agents' input, and `question` the same with the precheck's feedback.
        answer: the agent's unchanged answer, and `output` its present value.
        shape: the parser of this agent's output; None without AROS.
        check: the precheck, while it is under way.
        is_redirected: a plugin has sent the prompt to another agent, which was not called yet.
    """

    def __init__(self, work: Work, run: AttemptRun) -> None:
        self.work, self.run = work, run
        self.callee, self.guidance = work.callee, work.guidance
        self.prompt: Any = work.data
        self.question: Any = work.data
        self.answer = AgentAnswer(None)
        self.output: Any = None
        self.shape: OutputParser | None = None
        self.check: Precheck | None = None
        self.is_redirected = False
        self._appended: tuple[str | None, Any] = None, None
        self._tried: list[dict[str, Any]] = []
        self._began = time.monotonic()
        self._asks_since: float | None = None

    async def perform(self) -> Done:
        """Run the stages; after a redirect those of another agent, until no plugin redirects."""
        stages = self.work.stages
        try:
            for stage in stages:
                await self._pass(stage)
                while self.is_redirected:
                    self.is_redirected = False
                    for again in REDIRECTED:
                        if again in stages:
                            await self._pass(again)
        except BaseException:
            self.run.raw = self._raw
            await self._break_off_precheck()
            raise
        run = self.run
        return Done(self.output, run.context if run.stored is None else run.stored, *self._appended)

    async def _pass(self, stage: Stage) -> None:
        """Run one stage. Where AROS acts, its events name the agent and the model."""
        self.run.enter(stage.during)
        shape = self.shape if stage.during == "agent" else None
        if shape is None and not stage.is_bounded:
            await stage.act(self)
            return
        with _NOTHING if shape is None else bound(agent=shape.agent, model=shape.model):
            async with self._bounded() if stage.is_bounded else _NOTHING:
                await stage.act(self)

    def _bounded(self) -> within:
        return within(self.work.timeout_s, self.run.failed)

    # The stages, in their order.

    async def load_conversation(self) -> None:
        """Render the conversation so far, for the agent."""
        self.run.history = await history_of(self.work, self.run.context)

    async def choose_reading(self) -> None:
        """Choose how to read the output of the agent that is called."""
        if self.work.processing is not None:
            from flujo_worker.attempts.shape import OutputParser

            self.shape = OutputParser(
                self.work.processing,
                step=self.work.step.name,
                agent=agent_name(self.agent),
                model=model_of(self.agent),
                threads=self.work.threads,
                corrections=self.run.corrections,
                correction=self._correction(),
            )

    async def render_prompt(self) -> None:
        """Fill in the template of the input, if there is one; then the prompt processors."""
        step, data = self.work.step, self.work.data
        if step.input is not None:
            data = Templated(step.input)(data, self.run.context)
        rendered = await processed(step.processors.prompt_processors, data, self.work, self.run)
        self.prompt = self.question = rendered.data

    async def precheck(self) -> None:
        """Judge the plan in the prompt, on the agent's time."""
        if self.shape is None:
            return
        from flujo_worker.attempts.precheck import Precheck

        self._asks_since, wanted = time.monotonic(), self.shape.settings
        self.check = Precheck(
            replace(wanted.precheck, timeout_s=min(wanted.precheck.timeout_s, self.work.timeout_s)),
            context=self.run.context if wanted.precheck.enabled else None,
            agent_of=self.work.agent_of,
            threads=self.work.threads,
            schema=self._schema() if wanted.precheck.enabled else None,
            shadow=wanted.shadow,
            resources=self.run.resources,
        )
        async with self._bounded():
            self.question = await self.check.before(self.prompt)

    async def run_agent(self) -> None:
        """Call the agent within its remaining time. A late answer is a timeout with the cost of the answer."""
        work, run, callee, since = self.work, self.run, self.callee, self._asks_since
        left_s = work.timeout_s if since is None else max(0.0, work.timeout_s - (time.monotonic() - since))
        options = work.options
        if not callee.takes.is_empty or callee.deps_type is not None or callee.is_library or callee.is_task:
            prompt_options = {"guidance": self.guidance, "history": run.history and run.history.text}
            options = {**run.at_hand(callee), **prompt_options, **options}
        run.has_called_agent = run.has_called_agent or callee.is_object
        run.answers_live = run.stream is not None
        asking = self._ask(options, left_s)
        with timed_call(callee.agent, most_s=left_s) if callee.may_ask else _NOTHING:
            answer = await (recorded(asking, work.data) if callee.asks else asking)
        if not answer.usage.is_nothing:
            run.spent += answer.usage
        self.answer, self.output = answer, answer.output

    async def _ask(self, options: Mapping[str, Any], left_s: float) -> AgentAnswer:
        work, run, callee, answer = self.work, self.run, self.callee, None
        shaping = None if self.shape is None else self._shaping(self.shape)
        question = typed_input(callee.agent, self.question, step=work.step.name)
        try:
            async with within(left_s, run.failed, limit_s=work.timeout_s):
                answer = await call_agent(callee, question, options, threads=work.threads, shaping=shaping)
                answer = replace(answer, usage=declared(answer.output, answer.usage))
        except TimeoutError as error:
            if answer is not None:
                run.charge(error, answer.usage)
            raise
        return answer

    async def read(self) -> None:
        """Parse the output with AROS, then validate its declared type."""
        if self.shape is not None:
            from flujo_worker.attempts.shape import shaped

            self.output = await shaped(self.answer, self.agent, self.shape)

    async def conclude_precheck(self) -> None:
        """Judge the plan in the answer, if the prompt had none; store the feedback for the next attempt."""
        if self.check is None or self.shape is None:
            return
        async with self._bounded():
            await self.check.after(self._raw, self.output)
        self._close(self.check)

    async def process_output(self) -> None:
        """Pass the output through the user's processors, unless they have corrected it already, and through the container's reader."""
        own, readers = _own(self.work.step), _readers(self.work.step)
        with judging():
            if own and not (self.shape is not None and self.shape.was_corrected):
                await self._process(own)
            self.output = (await processed(readers, self.output, self.work, self.run)).data

    async def _process(self, own: Sequence[Any]) -> None:
        check = self._final_check()
        done = await processed(own, self.output, self.work, self.run)
        if check is not None:
            from flujo_worker.attempts.correction import processors_named

            try:
                check.judge(done.data, processors_named(done.changed_by or [name_of(each) for each in own]))
            except AgentIOValidationError as error:
                emit_refusal("custom", error.rule, error.pointer, error.message, {}, {})
                raise
        if self.shape is not None:
            emit_custom(done.changed_by)
        self.output = done.data

    async def consult_plugins(self) -> None:
        """Call the plugins. One may replace the output, or send the prompt to another agent."""
        verdict = await consult_plugins(self.work, self.run, self.output)
        if not isinstance(verdict, Redirect):
            is_replaced = verdict is not self.output and not _readers(self.work.step)
            if is_replaced and (check := self._final_check()) is not None:
                check.judge(verdict, "a plugin put it in the answer's place")
            self.output = verdict
            return
        self.callee, self.is_redirected = callee_of(self._untried(verdict)), True
        self.guidance = verdict.feedback or self.work.guidance
        self.question, self._asks_since = self.prompt, self._began
        emit("step.redirected", plugin=verdict.plugin, agent=agent_name(self.agent), feedback=verdict.feedback)

    async def consult_validators(self) -> None:
        """Call the validators; a rejection is terminal."""
        await consult_validators(self.work, self.run, self.output)

    async def write_context(self) -> None:
        """Write the output to the step's sinks; record people's answers, and the conversation. A context in stored form is changed later."""
        work, run = self.work, self.run
        field = work.appends_to
        if field is not None:
            self._appended, self.output = (field, self.output), self.output.result
        emit_judgement(work.step.name, self.output)
        if run.stored is None and run.context is None and field is None:
            return
        if run.stored is not None and not (run.replies or _writes(work)):
            return
        context = run.context
        for reply, value in run.replies:
            context = remember(work, context, reply, value)
        run.context = record_turn(work, self.output, written(work.step, self.output, context, *self._appended))

    async def check_invariants(self) -> None:
        """Judge the output and the context as they would be merged; a violation is terminal, regardless of `strict_validation`."""
        await check_invariants(self.work, self.run, self.output)

    # What the stages use.

    @property
    def agent(self) -> Any:
        return self.callee.agent

    @property
    def _raw(self) -> str | None:
        """Return the text that the model wrote, if it is known."""
        text = self.answer.output if isinstance(self.answer.output, str) else None
        return (self.shape and self.shape.raw) or text

    def _schema(self) -> Mapping[str, Any] | None:
        """Return the schema of the output: the step's own, or that of the agent's type."""
        from flujo_worker.aros.typed import schema_of, structured_type

        own = None if self.shape is None else self.shape.settings.schema
        declared = structured_type(self.agent) if own is None else None
        return own if declared is None else schema_of(declared)

    def _final_check(self) -> FinalCheck | None:
        """Return the judge of an output that user code may have changed after AROS accepted it; None without AROS."""
        if self.shape is None or not self.shape.changes:
            return None
        from flujo_worker.aros.typed import structured_type
        from flujo_worker.attempts.correction import FinalCheck

        settings = self.shape.settings
        declared = structured_type(self.agent)
        return FinalCheck(settings.schema, declared, self.output, strict_schema=settings.strict_schema)

    def _correction(self) -> OutputCorrection | None:
        """Return the correction by the step's own output processors of values that only the schema rejects."""
        own = _own(self.work.step)

        async def process(data: Any) -> Processed:
            async with self._bounded():
                return await processed(own, data, self.work, self.run)

        if not own:
            return None
        from flujo_worker.attempts.correction import OutputCorrection

        return OutputCorrection([name_of(each) for each in own], process)

    def _shaping(self, shape: OutputParser) -> Shaping:
        step, wanted, mode = self.work.step, shape.settings, shape.settings.structured_output
        if mode == "openai_json" and "structured_output" not in (step.processing or {}):
            mode = "auto"  # a project's default asks for JSON where it is expected; only a step's own setting makes a text agent return it
        name = re.sub(r"[^A-Za-z0-9_-]", "_", step.name)[:_LONGEST_NAME]
        return Shaping(mode, name, wanted.schema, wanted.shadow, shape.read, reads=shape.changes, fit=shape.fit)

    def _untried(self, redirect: Redirect) -> Any:
        """Find the agent that a plugin redirects to. Raises InfiniteRedirectError: it was called before."""
        agent = self.work.agent_of(redirect.agent)
        if not (callable(agent) or callable(getattr(agent, "run", None))):
            raise PluginError(f"{redirect.plugin}: redirect_to is a {type(agent).__name__}, not an agent")
        identity = identify(agent)
        self._tried.append(identify(self.agent))
        if identity in self._tried:
            raise InfiniteRedirectError(
                f"step '{self.work.step.name}': plugin {redirect.plugin} redirects to {agent_name(agent)}, which has already been tried",
                suggestion="make the plugin reject the output when there is no other agent to try",
            )
        return agent

    async def _break_off_precheck(self) -> None:
        """Close a precheck under way; unless the attempt was cancelled, it reports that it found no plan."""
        check, shape = self.check, self.shape
        if check is None or shape is None:
            return
        if not is_cancelled():
            with bound(agent=shape.agent, model=shape.model):
                await check.after(None, None)
        self._close(check)

    def _close(self, check: Precheck) -> None:
        """Remove the guidance from the context, and store the precheck's usage and feedback."""
        check.forget()
        self.run.spent += check.usage
        self.run.guidance, self.check = check.feedback, None


def reads_context(work: Work) -> bool:
    """Return whether every attempt at the step reads its context. One that continues with an answer always does."""
    step, processing = work.step, work.processing
    own = (*step.processors.prompt_processors, *step.processors.output_processors, *step.plugins, *step.validators)
    reads = (step.input, work.conversation, work.invariants, processing and processing.precheck.enabled)
    return bool(any(reads) or _writes(work) or not all(map(is_answer_reader, own)) or work.callee.takes_context)


def _writes(work: Work) -> bool:
    """Return whether the output is written to the context by more than its step's name."""
    return bool(work.step.sink_to or work.step.updates_context or work.conversation is not None)


def _own(step: Step) -> list[Any]:
    return [each for each in step.processors.output_processors if not is_answer_reader(each)]


def _readers(step: Step) -> list[Any]:
    return [each for each in step.processors.output_processors if is_answer_reader(each)]


class Stage(NamedTuple):
    """One stage."""

    during: During
    """The name for its failures."""
    act: Callable[[StepAttempt], Awaitable[None]]
    is_bounded: bool = True
    """Whether the agent's timeout bounds it."""
    applies: Callable[[Work], object] = lambda _: True
    """Returns whether a step needs it; most steps have little around their agent."""


_SHAPED: Final = attrgetter("processing")
_CHOOSE: Final = Stage("agent", StepAttempt.choose_reading, is_bounded=False, applies=_SHAPED)
_RUN_AGENT: Final = Stage("agent", StepAttempt.run_agent, is_bounded=False)  # it has what is left
_READ: Final = Stage("agent", StepAttempt.read, is_bounded=False, applies=_SHAPED)
_PROCESS: Final = Stage("agent", StepAttempt.process_output, applies=attrgetter("step.processors.output_processors"))
_renders: Final = attrgetter("step.processors.prompt_processors")
_PLUGINS: Final = Stage("plugin", StepAttempt.consult_plugins, applies=attrgetter("step.plugins"))

STAGES: Final = (
    Stage("agent", StepAttempt.load_conversation, is_bounded=False, applies=attrgetter("conversation")),
    _CHOOSE,
    Stage("agent", StepAttempt.render_prompt, applies=lambda work: work.step.input is not None or _renders(work)),
    Stage("agent", StepAttempt.precheck, is_bounded=False, applies=_SHAPED),  # it bounds what it awaits
    _RUN_AGENT,
    _READ,
    Stage("agent", StepAttempt.conclude_precheck, is_bounded=False, applies=_SHAPED),  # likewise
    _PROCESS,
    _PLUGINS,
    Stage("validator", StepAttempt.consult_validators, applies=attrgetter("step.validators")),
    Stage("system", StepAttempt.write_context, is_bounded=False),
    Stage("validator", StepAttempt.check_invariants, applies=attrgetter("invariants")),
)
REDIRECTED: Final = (_CHOOSE, _RUN_AGENT, _READ, _PROCESS, _PLUGINS)


def stages_of(work: Work) -> tuple[Stage, ...]:
    return tuple(stage for stage in STAGES if stage.applies(work))
