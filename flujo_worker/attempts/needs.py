"""Find what an attempt needs: its pipeline, the code and the agent of its step, a context that its model can read.

The needs that all attempts at a step share are computed once: how to call its agent, its stages, and the pipeline around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, Final

from flujo_client.contract.code import AwaitedCode, ParkCause
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.processing import resolve
from flujo_client.errors import KeyMissing
from flujo_client.pipeline.function_marks import appended_field
from flujo_client.pipeline.hooks import shown_as
from flujo_client.pipeline.step import Step
from flujo_client.plan.identity import defaults_of
from flujo_worker.agents.call import callee_of
from flujo_worker.agents.factory import FlujoAgent, asker_of, asks_by_library, tools_of
from flujo_worker.attempts.attempt import PERFORMED, AttemptServices, StagedAttempt, StepNeeds
from flujo_worker.attempts.step import reads_context, stages_of
from flujo_worker.changed_code.code_registry import CodeMismatch, CodeNotHere, CodeRegistry, LoadedPipeline, put_bounded
from flujo_worker.changed_code.code_versions import CodeOfSteps, CodeVersions, PerformedWith
from flujo_worker.changed_code.context_migrations import ContextMigrations, ContextMisfit, fitting
from flujo_worker.concurrency.event_loop import within
from flujo_worker.domain.conversation import conversation_at
from flujo_worker.runtime.attempt_run import Work, in_thread_of
from flujo_worker.runtime.effects import Effects
from flujo_worker.user_code.hooks import HookCaller


class PipelineLoading:
    """Loads the pipelines of attempts, each once, however many attempts come meanwhile.

    The first attempt loads its pipeline under its claim, so that a crash at the import counts against no other (ADR 13). The others wait
    without a claim and without a thread. If it does not load, they are claimed too, with the same finding.
    """

    def __init__(self, catalog: CodeRegistry, effects: Effects) -> None:
        self.catalog, self._effects = catalog, effects
        self._first: dict[str, tuple[str, str, Future[CodeMismatch | None]]] = {}
        self._findings: dict[str, CodeMismatch] = {}

    async def wait(self, envelope: Envelope) -> None:
        """Wait while another attempt loads the pipeline; return at once if this one is to load it."""
        ticket = envelope.ticket
        while not self.catalog.has(ticket.reference):
            own = envelope.key, ticket.fingerprint, Future[CodeMismatch | None]()
            key, fingerprint, ended = self._first.setdefault(ticket.reference, own)
            finding = None if key == envelope.key else await self._effects.result(ended)
            if finding is not None and fingerprint == ticket.fingerprint:
                self._findings[envelope.key] = finding
            if key == envelope.key or envelope.key in self._findings:
                return

    def end_wait(self, envelope: Envelope) -> None:
        """Let the others go on, and forget the finding, when an attempt that has waited ends."""
        self._wake(envelope)
        self._findings.pop(envelope.key, None)

    async def entry(self, envelope: Envelope) -> LoadedPipeline:
        """Return an attempt's pipeline; the first attempt loads it. Raises CodeMismatch."""
        if self.catalog.has(envelope.ticket.reference):
            return self.find(envelope)
        try:
            return await self._effects.call(self.find, envelope)
        except CodeMismatch as finding:
            self._findings[envelope.key] = finding
            raise
        finally:
            self._wake(envelope)

    def find(self, envelope: Envelope) -> LoadedPipeline:
        """Do what `entry` does, in the calling thread."""
        if (finding := self._findings.get(envelope.key)) is not None:
            raise finding.with_traceback(None)
        return self.catalog.entry(envelope.ticket.reference, envelope.ticket.fingerprint)

    def _wake(self, envelope: Envelope) -> None:
        """Let the others go on, if this attempt was the first."""
        key, _, ended = self._first.get(envelope.ticket.reference, (None, None, None))
        if ended is not None and key == envelope.key:
            del self._first[envelope.ticket.reference]
            ended.set_result(self._findings.get(key))


class Needs:
    """Finds what steps need, once for each step and each `[aros]`."""

    def __init__(self, catalog: CodeRegistry, threads: Executor, resolve_class: Callable[[str], Any]) -> None:
        self._catalog, self._threads, self._resolve = catalog, threads, resolve_class
        self._known: dict[tuple[int, str, str], StepNeeds] = {}

    def known(self, entry: LoadedPipeline, path: str, envelope: Envelope) -> StepNeeds | None:
        """Return the needs of an attempt's step if they are known."""
        return self._known.get(_needs_key(entry, path, envelope))

    def find(self, entry: LoadedPipeline, envelope: Envelope, code: PerformedWith | None = None) -> StepNeeds:
        """Find the needs of an attempt's step; `code` is the version of its code. Raises the exceptions of the step's code."""
        path = entry.node_of(envelope).path
        found = self.known(entry, path, envelope)
        if found is None:
            shared_code = None if code is None or code.mark.conversation else code
            found = self._compute(entry, path, envelope, shared_code)
            put_bounded(self._known, _needs_key(entry, path, envelope), found)
        return found

    def _compute(self, entry: LoadedPipeline, path: str, envelope: Envelope, code: PerformedWith | None) -> StepNeeds:
        step = entry.steps[path]
        agent = self._catalog.agent(step.agent)
        callee, timeout_s = callee_of(agent), step.config.timeout_s or defaults_of(agent).get("timeout_s")
        make_work = partial(
            Work,
            step=step,
            callee=callee,
            options=step.config.options(),
            appends_to=appended_field(agent),
            threads=self._threads,
            processing=resolve(step.processing, envelope.ticket.aros),
            agent_of=self._catalog.agent,
            resolve=self._resolve,
            resources=self._catalog.resources(entry.resources_at(path)),
            conversation=conversation_at(entry.plan, envelope.address),  # which the path determines
            invariants=[(shown_as(each), self._catalog.invariant(each)) for each in entry.invariants_at(path)],
        )
        work, is_gated = make_work(timeout_s=0.0), step.limit is not None or callee.may_ask
        make_work = partial(make_work, stages=stages_of(work))
        return StepNeeds(entry, step, timeout_s, make_work, reads_context(work), is_gated, code)


def _needs_key(entry: LoadedPipeline, path: str, envelope: Envelope) -> tuple[int, str, str]:
    return id(entry), path, str(envelope.ticket.aros or "")


class Preparation:
    """Prepares attempts."""

    def __init__(self, services: AttemptServices, needs: Needs) -> None:
        stores, hooks, settings, effects = services.stores, services.hooks, services.settings, services.effects
        stores_prompts = settings.log.prompts != "off"
        self._versions = CodeVersions(stores.code, CodeOfSteps(hooks.catalog, settings.template, stores_prompts))
        self._catalog = hooks.catalog
        self.migrations = ContextMigrations(stores.code, stores.blobs, hooks.bench)
        self._effects, self._needs, self._refused = effects, needs, dict[str, None]()
        self._readiness = Readiness(hooks, effects, most_s=settings.agents.agent_timeout_s)

    async def prepare(self, attempt: StagedAttempt) -> None:
        """Prepare an attempt. Raises CodeMismatch: its context does not fit; or its conversation used other code, and its pipeline parks such runs."""
        envelope, entry = attempt.message, attempt.entry
        if entry.pipeline.context_model is not None:
            await self._migrate(attempt)
        if envelope.kind not in PERFORMED:
            return
        path = entry.node_of(envelope).path
        known = self._needs.known(entry, path, envelope)
        if known is not None and known.code is not None:
            attempt.needs, attempt.code = known, known.code
            return
        attempt.code = await self._code_of(entry, path, envelope.code)
        if (step := entry.steps.get(path)) is not None:
            await self._readiness.wait_for(step)
            with suppress(Exception):  # the attempt reports the error when it needs the result
                attempt.needs = self._needs.find(entry, envelope, attempt.code)

    async def _migrate(self, attempt: StagedAttempt) -> None:
        """Migrate an attempt's context to the pipeline's present model, if it needs that."""
        envelope, entry = attempt.message, attempt.entry
        if not self.migrations.are_known(entry):
            await self._effects.together(self.migrations.look_up, entry)
        if not self.migrations.are_needless(entry):
            attempt.migrated = await self._effects.call(fitting, self.migrations, entry, envelope)
        if attempt.migrated is not None:
            attempt.envelope = replace(envelope, context=attempt.migrated.context)

    def record(self, reference: str) -> None:
        """Store the code versions of the steps of a loaded pipeline, for comparisons."""
        self._versions.record(self._catalog.loaded(reference))

    def fits(self, entry: LoadedPipeline, awaited: AwaitedCode, envelope: Envelope | None) -> bool:
        """Return whether this process has the code for which a run is parked: for its conversation, or for its context."""
        if not awaited.attempt:
            return entry.pipeline.on_body_change != "park" or self._versions.fits(entry, awaited)
        if awaited.attempt in self._refused:
            return False
        try:
            if envelope is not None:
                fitting(self.migrations, entry, envelope)
        except (ContextMisfit, KeyMissing):
            return False
        return True

    def awaited(self, finding: CodeMismatch, key: str) -> AwaitedCode | None:
        """Return the code that a run has to wait for; for its context, or for code that is missing, this process rejects an attempt once."""
        if not isinstance(finding, (ContextMisfit, CodeNotHere)):
            return finding.awaited
        self.migrations.forget()
        return self.refuse(key)

    def refuse(self, key: str) -> AwaitedCode:
        """Return the code that a run waits for because this process cannot read the values of its attempt, and does not try again."""
        put_bounded(self._refused, key, None)
        return AwaitedCode(attempt=key)

    async def _code_of(self, entry: LoadedPipeline, path: str, before: tuple[str, ...]) -> PerformedWith | None:
        found = self._versions.known(entry, path, before)
        if found is None:
            found = await self._effects.together(self._find, (entry, path, before))
        if found is not None and found.changed and entry.pipeline.on_body_change == "park":
            changed = ", ".join(found.changed)
            raise CodeMismatch(
                f"step '{path}' would continue a conversation that used other code: {changed} changed; "
                "a worker with the earlier code will continue it",
                awaited=AwaitedCode(path, before),
                cause=ParkCause("conversation", f"{changed} of step '{path}' changed"),
            )
        return found

    def _find(self, asked: Sequence[tuple[LoadedPipeline, str, tuple[str, ...]]]) -> list[PerformedWith | None]:
        return [self._versions.find(*each) for each in asked]


_ASKING: Final = "attempts.shape", "attempts.precheck", "agents.models", "agents.structured", "agents.outputs"
"""The modules, and pydantic-ai with them, that only steps with models need: they are imported late."""


class Readiness:
    """The agents of this process that are ready. An agent is waited for `most_s` seconds, because a function that makes a model may hang."""

    def __init__(self, hooks: HookCaller, effects: Effects, *, most_s: float) -> None:
        self._bench, self._agent_of, self._effects, self._most_s = hooks.bench, hooks.catalog.agent, effects, most_s
        self._begun: dict[int, tuple[Step, Future[None]]] = {}

    async def wait_for(self, step: Step) -> None:
        """Wait until a step's agent is ready."""
        begun = self._begun.get(id(step))
        if begun is None:
            begun = step, self._bench.loop.submit(self._prepare(step), f"the import of what step '{step.name}' needs")
            put_bounded(self._begun, id(step), begun)
        if not begun[1].done():
            with suppress(Exception, CancelledError):
                await self._effects.result(begun[1])

    async def _prepare(self, step: Step) -> None:
        async with within(self._most_s):
            agent = await in_thread_of(self._bench.threads, partial(self._agent_of, step.agent))
            for each in (agent, *(tool.agent for tool in tools_of(agent))):
                await self._make(asker_of(each))

    async def _make(self, asker: Any) -> None:
        if not asks_by_library(asker):
            return
        for module in _ASKING:
            await in_thread_of(self._bench.threads, partial(import_module, f"flujo_worker.{module}"))
        from flujo_worker.agents.models import effective_model

        await effective_model(await asker.made() if isinstance(asker, FlujoAgent) else asker)
