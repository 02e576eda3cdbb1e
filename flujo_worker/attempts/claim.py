"""Claim an attempt, with what it reserves. Nothing is carried out here."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from flujo_client.config.models import Historical
from flujo_client.config.run_settings import RunSettings, settings_of
from flujo_client.contract.context import StoredContext
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.processing import resolve
from flujo_client.frozen import frozen
from flujo_client.pipeline.compiled_text import Filling, Templated, filling_by
from flujo_client.pipeline.step import Step
from flujo_client.recipes.agentic_protocol import gets_turns, with_turns
from flujo_client.serial import decode
from flujo_worker.agents.previews import text_of
from flujo_worker.attempts.attempt import AttemptServices
from flujo_worker.attempts.budget import ExpectedCall, StepCalls, calls_of, reservations
from flujo_worker.attempts.conversation import history_text
from flujo_worker.attempts.needs import PipelineLoading
from flujo_worker.attempts.resume import is_for_tool
from flujo_worker.changed_code.code_registry import CodeMismatch, LoadedPipeline, put_bounded
from flujo_worker.domain.budget import Learned, Place, Reservation, learned, place_of
from flujo_worker.domain.conversation import conversation_at
from flujo_worker.errors import StoreError
from flujo_worker.ports import AttemptStore, Claim, ClaimId, ClaimTerms, Reply, Room
from flujo_worker.runtime.attempt_run import ActiveAttempt
from flujo_worker.runtime.question import fetched

WritePrompt = Callable[[Any, Any], str] | None
logger = logging.getLogger(__name__)

UNCOMMITTED_S = 1.0
"""The maximum seconds of a sweep from sending a message to its commit."""
MAX_CLAIMS: Final = 20_000
"""The number of its latest claims that a process remembers. The lease releases an unused claim long before."""


@frozen
class ClaimParameters:
    """The parameters of an attempt's claim, or why they are unknown; `inlined` is its envelope if its blobs had to be read."""

    reply: Reply | None = None
    inlined: Envelope | None = None
    calls: Sequence[ExpectedCall] = ()
    to_reserve: Sequence[Reservation] = ()
    error: Exception | None = None


NOTHING: Final = ClaimParameters()


class Claims:
    """Claims attempts for this process."""

    def __init__(self, services: AttemptServices, loading: PipelineLoading) -> None:
        self._stores, self._lease, self._effects = services.stores, services.lease, services.effects
        self._settings, self._resolve = services.settings, services.resolve
        self._loading, self._catalog = loading, loading.catalog
        historical = self._settings.cost.historical or Historical()
        self._history = SpentHistory(self._stores.attempts, historical, services.threads)
        self._own = RunSettings.of(self._settings)
        self._calls: dict[tuple[str, str, str], StepCalls] = {}
        self._claims_used = OrderedDict[str | None, None]()

    async def find_parameters(self, envelope: Envelope) -> ClaimParameters:
        """Find the parameters of the claim of an attempt that continues with an answer, or has limits.

        If that fails it is claimed anyway, to report the error and end. Agents are asked once which models they may call, which may import
        them; they are users' code. Only a prompt that has to be fetched or rendered for the estimate leaves this thread, since it may take
        long.
        """
        known = self._parameters_of_step(envelope, may_read=False) if envelope.kind == "step" else None
        return await self._effects.call(self._look_up, envelope) if known is None else known

    def known_reservations(self, envelope: Envelope) -> Sequence[Reservation] | None:
        """Return the reservations for a step's claim, if no look-up is needed to compute them."""
        known = self._parameters_of_step(envelope, may_read=False)
        return None if known is None else known.to_reserve

    def _look_up(self, envelope: Envelope) -> ClaimParameters:
        try:
            reply = self.reply(envelope)
            if envelope.ticket.limits is None or not performs_step(envelope, reply):
                return ClaimParameters(reply)
            return replace(self._parameters_of_step(envelope, may_read=True) or ClaimParameters(), reply=reply)
        except StoreError:
            raise
        except Exception as error:
            logger.exception("the needs of attempt %s could not be determined", envelope.key)
            return ClaimParameters(error=error)

    def _parameters_of_step(self, envelope: Envelope, *, may_read: bool) -> ClaimParameters | None:
        """Return the parameters of a step's claim: the calls that the attempt may make, and the reservation for them.

        None: this process does not know all of them, and code may not be imported, values fetched, or prompts rendered for that; or the code
        is not here. Code that is missing reserves nothing: its run is parked.
        """
        ticket = envelope.ticket
        if not (may_read or self._catalog.has(ticket.reference)):
            return None
        with suppress(CodeMismatch):
            entry = self._loading.find(envelope)
            path = entry.node_of(envelope).path
            step = entry.steps[path]
            calls = self._calls_at(envelope, step, path) if may_read else self._calls.get(_key(envelope, path))
            if calls is None:
                return None
            if not calls.needs_prompt:
                return self._estimate(envelope, entry, path, calls, 0)
            write_prompt, inlined = calls.agent.write_prompt, None
            if envelope.references or is_rendered(envelope, entry, step, write_prompt):
                if not may_read:
                    return None
                inlined = envelope.inline(fetched(self._stores.blobs, envelope.references))
            size = prompt_bytes(inlined or envelope, entry, step, write_prompt, self._resolve)
            return replace(self._estimate(envelope, entry, path, calls, size), inlined=inlined)
        return None

    def _calls_at(self, envelope: Envelope, step: Step, path: str) -> StepCalls:
        key = _key(envelope, path)
        if key not in self._calls:
            wanted = resolve(step.processing, envelope.ticket.aros)
            precheck = None if wanted is None else wanted.precheck
            put_bounded(self._calls, key, calls_of(step, precheck, agent_of=self._catalog.agent))
        return self._calls[key]

    def _estimate(
        self, envelope: Envelope, entry: LoadedPipeline, path: str, calls: StepCalls, size: int
    ) -> ClaimParameters:
        cost = settings_of(envelope.ticket.settings, self._own).cost
        is_whole = cost.estimation_strategy == "historical"
        known = self._history.expected(envelope) if is_whole or calls.needs_prompt else None
        expected = calls.expected(size, cost, known, is_whole=is_whole)
        today = datetime.now(UTC).date()
        return ClaimParameters(calls=expected, to_reserve=reservations(envelope, entry, path, expected, today))

    async def claim(
        self, envelope: Envelope, active: ActiveAttempt, to_reserve: Sequence[Reservation], room: Room
    ) -> Claim:
        """Claim, as the present incarnation of this process.

        A sweep sends a lost attempt before it commits the loss. A process that may not judge leases sees the dead worker's row until then.
        """
        until = time.monotonic() + UNCOMMITTED_S
        while True:
            worker, may_judge = self._lease.worker, self._lease.may_judge()
            most = self._settings.worker.max_lost
            terms = ClaimTerms(max_lost=most, may_judge=may_judge, to_reserve=to_reserve, room=room)
            claim = await self._effects.claim(envelope, worker, **terms)
            if claim.fence is not None:
                if envelope.kind in ("step", "resume") and not self._note_claim(claim):
                    return replace(claim, fence=None)
                active.fence, active.claim_id, active.reserved = claim.fence, claim.claim_id, to_reserve
                return claim if claim.refusal is None else replace(claim, refusal=None)
            if claim.refusal == "busy" and not may_judge and time.monotonic() < until:
                await self._effects.call(time.sleep, UNCOMMITTED_S / 20)
                continue
            if claim.refusal != "unleased":
                return claim
            patience_s = 5 * self._settings.worker.lease_s
            if not await self._effects.call(self._lease.wait_for_another, worker, seconds=patience_s):
                return claim

    def _note_claim(self, claim: Claim) -> bool:
        """Record that this process works under a claim; return False if it has done so before.

        The store returns a claim again if its answer was lost, or if its outcome was refused, as after a failover. Such a claim is used at most
        once; the lease releases it.
        """
        if claim.refusal is not None and claim.claim_id in self._claims_used:
            return False
        self._claims_used[claim.claim_id] = None
        if len(self._claims_used) > MAX_CLAIMS:
            self._claims_used.popitem(last=False)
        return True

    async def import_claimed(self, envelope: Envelope, active: ActiveAttempt, room: Room) -> Claim:
        """Import the code for the reservation, under a separate claim: a crash at its import counts against this attempt (ADR 13)."""
        claim = await self.claim(envelope, active, (), room)
        if claim.fence is not None:
            with suppress(CodeMismatch):
                await self._loading.entry(envelope)
            active.fence = None  # first: a renewal that sees it released would count the work as lost
            released = ClaimId(envelope.key, claim.fence, claim.claim_id)
            await self._effects.call(self._stores.attempts.defer, released, 0.0)
        return claim

    def reply(self, envelope: Envelope) -> Reply | None:
        return self._stores.records.reply(envelope.key) if envelope.kind == "resume" else None


def _key(envelope: Envelope, path: str) -> tuple[str, str, str]:
    """Return the cache key of a step's calls: its code and the project's `[aros]`."""
    return envelope.ticket.fingerprint, path, str(envelope.ticket.aros)


def performs_step(envelope: Envelope, reply: Reply | None) -> bool:
    """Return whether agents may be called: at a step, or when it is performed again with a person's answer."""
    return envelope.kind == "step" or (reply is not None and is_for_tool(reply))


class SpentHistory:
    """Expects of an attempt what those before it have cost. Safe for several threads.

    It does not make an attempt wait: what is not known yet, or too old, is read in a thread, once for each pipeline, and counts from the
    next attempt on. A store that does not answer leaves what was known. `clock` counts seconds that never go back.
    """

    def __init__(
        self, attempts: AttemptStore, wanted: Historical, threads: Executor, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._attempts, self._wanted, self._threads, self._clock = attempts, wanted, threads, clock
        self._known: dict[str, dict[Place, Learned]] = {}
        self._read_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def expected(self, envelope: Envelope) -> Learned | None:
        """Return what attempts at this place have cost, if that is known."""
        reference = envelope.ticket.reference
        if self._begin_read(reference):
            self._threads.submit(self._read, reference)
        return self._known.get(reference, {}).get(place_of(envelope.address, envelope.step))

    def _begin_read(self, reference: str) -> bool:
        """Return True to one caller in each interval, which then reads."""
        with self._lock:
            now, before = self._clock(), self._read_at.get(reference)
            if before is not None and now - before < self._wanted.refresh_s:
                return False
            self._read_at[reference] = now
            return True

    def _read(self, reference: str) -> None:
        try:
            spent = self._attempts.spent_lately(reference, self._wanted.runs)
            self._known[reference] = learned(spent, least=self._wanted.attempts, quantile=self._wanted.quantile)
        except Exception:
            logger.warning("the cost of attempts of %s could not be read", reference, exc_info=True)


def is_rendered(envelope: Envelope, entry: LoadedPipeline, step: Step, write_prompt: WritePrompt) -> bool:
    """Return whether anything else than the input becomes the prompt: a template's text, or the conversation or the turns so far."""
    is_templated = step.input is not None or write_prompt is not None or gets_turns(step)
    return is_templated or conversation_at(entry.plan, envelope.address) is not None


def prompt_bytes(
    envelope: Envelope, entry: LoadedPipeline, step: Step, write_prompt: WritePrompt, resolve: Callable[[str], Any]
) -> int:
    """Count the bytes of the prompt, of the conversation before it and of the guidance after it; of a prompt that cannot be rendered, its input's."""
    length = envelope.input.length
    if is_rendered(envelope, entry, step, write_prompt):
        with suppress(Exception), filling_by(Filling("ignore")):  # see the docstring
            length = len(_rendered(envelope, entry, step, write_prompt, resolve).encode())
    return length + len((envelope.guidance or "").encode())


def _rendered(
    envelope: Envelope, entry: LoadedPipeline, step: Step, write_prompt: WritePrompt, resolve: Callable[[str], Any]
) -> str:
    stored = None if envelope.context is None else StoredContext(envelope.context, resolve)
    data = with_turns(decode(envelope.input.tree(), resolve=resolve), stored)
    context = None if stored is None else stored.live()
    if step.input is not None:
        data = Templated(step.input)(data, context)
    prompt = text_of(data) if write_prompt is None else write_prompt(data, context)
    rules = conversation_at(entry.plan, envelope.address)
    history = None if rules is None else history_text(context, rules)
    return prompt if history is None else f"{history}\n\n{prompt}"
