"""Decide whether an attempt may begin: claim it, with what it reserves, and ask the circuit breaker of its model.

It must not carry anything out, or decide when a breaker turns. In: an attempt's envelope, its code and its agent. Out: a claim, or why
there is none; whether it may call its model, or how long it has to wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from flujo_client.config.manager import Settings
from flujo_client.config.models import Historical
from flujo_client.config.run_settings import RunSettings, settings_of
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.outcome import Event
from flujo_client.contract.processing import resolve
from flujo_client.pipeline.step import Step
from flujo_client.serial import Resolver
from flujo_worker.agents.factory import service_of
from flujo_worker.attempts.budget import ExpectedCall, StepCalls, calls_of, reservations
from flujo_worker.attempts.lease import ActiveAttempt, Lease
from flujo_worker.attempts.prompt_size import is_rendered, prompt_bytes
from flujo_worker.attempts.resume import is_for_tool
from flujo_worker.attempts.spent_history import History
from flujo_worker.domain.breaker import BreakerReport, Counts, Permit, spread
from flujo_worker.domain.budget import Reservation
from flujo_worker.errors import StoreError
from flujo_worker.guards.breakers import BreakerRequest, Breakers
from flujo_worker.ports import Claim, Ledger, Reply, Room
from flujo_worker.runtime.attempt_run import ModelCall
from flujo_worker.runtime.effects import ClaimTerms, Effects
from flujo_worker.user_code.code_registry import CodeMismatch, CodeRegistry, LoadedPipeline, put_bounded
from flujo_worker.user_code.question import fetched

logger = logging.getLogger(__name__)

UNCOMMITTED_S = 1.0
"""The maximum seconds of a sweep from sending a message to its commit."""


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """The parameters of an attempt's claim, or why they are unknown; `inline` is its envelope with the values that had to be read."""

    reply: Reply | None = None
    inline: Envelope | None = None
    calls: Sequence[ExpectedCall] = ()
    to_reserve: Sequence[Reservation] = ()
    error: Exception | None = None


class Claims:
    """Claims attempts for this process.

    Args:
        ledger: where attempts are claimed.
        lease: this process's right to work.
        catalog: the live pipelines of this process.
        threads: where the costs of earlier attempts are read.
        settings: limits and prices.
        effects: how answers are waited for.
    """

    def __init__(
        self,
        ledger: Ledger,
        lease: Lease,
        catalog: CodeRegistry,
        threads: Executor,
        settings: Settings,
        effects: Effects,
    ) -> None:
        self._ledger, self._lease, self._catalog, self._settings = ledger, lease, catalog, settings
        self._effects = effects
        self._history = History(ledger, settings.cost.historical or Historical(), threads)
        self._resolve, self._own = Resolver(settings.allowed_imports), RunSettings.of(settings)
        self._calls: dict[tuple[str, str, str], StepCalls] = {}

    async def wanted(self, envelope: Envelope) -> ClaimRequest:
        """Find the parameters of the attempt's claim.

        If that fails it is claimed anyway, to report the error and end. Agents are asked once which models they may call, which may import
        them; they are users' code. Only a prompt that has to be fetched or rendered for the estimate leaves this thread, since it may take
        long.
        """
        if envelope.kind != "resume" and envelope.ticket.limits is None:
            return ClaimRequest()
        known = self._known_request(envelope) if envelope.kind == "step" else None
        return await self._effects.call(self._look_up, envelope) if known is None else known

    def known_reservations(self, envelope: Envelope) -> Sequence[Reservation] | None:
        """Return the reservations for a step's claim; None if computing them requires a look-up."""
        known = self._known_request(envelope)
        return None if known is None else known.to_reserve

    def _known_request(self, envelope: Envelope) -> ClaimRequest | None:
        """Return the parameters of a step's claim, if this process knows all of them."""
        ticket = envelope.ticket
        if not self._catalog.has(ticket.reference):
            return None
        with suppress(CodeMismatch):
            entry = self._catalog.entry(ticket.reference, ticket.fingerprint)
            path = entry.node_of(envelope).path
            calls = self._calls.get(_key(envelope, path))
            if calls is None:
                return None
            if not calls.needs_prompt:
                return self._request(envelope, entry, path, calls, 0)
            step, write_prompt = entry.steps[path], calls.agent.write_prompt
            if not envelope.references and not is_rendered(envelope, entry, step, write_prompt):
                size = prompt_bytes(envelope, entry, step, write_prompt, self._resolve)
                return self._request(envelope, entry, path, calls, size)
        return None

    def _look_up(self, envelope: Envelope) -> ClaimRequest:
        try:
            reply = self.reply(envelope)
            if envelope.ticket.limits is None or not performs_step(envelope, reply):
                return ClaimRequest(reply)
            return replace(self._look_up_step(envelope), reply=reply)
        except StoreError:
            raise
        except Exception as error:
            logger.exception("the needs of attempt %s could not be determined", envelope.key)
            return ClaimRequest(error=error)

    def _look_up_step(self, envelope: Envelope) -> ClaimRequest:
        """Find the calls that the attempt may make, and the reservation for them.

        Code that is missing here reserves nothing: its run is parked.
        """
        ticket = envelope.ticket
        with suppress(CodeMismatch):
            entry = self._catalog.entry(ticket.reference, ticket.fingerprint)
            path = entry.node_of(envelope).path
            step = entry.steps[path]
            calls = self._calls_at(envelope, step, path)
            if not calls.needs_prompt:
                return self._request(envelope, entry, path, calls, 0)
            inline = envelope.inline(fetched(self._ledger, envelope.references)) if envelope.references else envelope
            size = prompt_bytes(inline, entry, step, calls.agent.write_prompt, self._resolve)
            return replace(self._request(envelope, entry, path, calls, size), inline=inline)
        return ClaimRequest()

    def _calls_at(self, envelope: Envelope, step: Step, path: str) -> StepCalls:
        key = _key(envelope, path)
        if key not in self._calls:
            wanted = resolve(step.processing, envelope.ticket.aros)
            precheck = None if wanted is None else wanted.precheck
            put_bounded(self._calls, key, calls_of(step, precheck, agent_of=self._catalog.agent))
        return self._calls[key]

    def _request(
        self, envelope: Envelope, entry: LoadedPipeline, path: str, calls: StepCalls, size: int
    ) -> ClaimRequest:
        cost = settings_of(envelope.ticket.settings, self._own).cost
        is_whole = cost.estimation_strategy == "historical"
        known = self._history.expected(envelope) if is_whole or calls.needs_prompt else None
        expected = calls.expected(size, cost, known, is_whole=is_whole)
        today = datetime.now(UTC).date()
        return ClaimRequest(calls=expected, to_reserve=reservations(envelope, entry, path, expected, today))

    async def claim(
        self, envelope: Envelope, held: ActiveAttempt, to_reserve: Sequence[Reservation], room: Room
    ) -> Claim:
        """Claim, as the present incarnation of this process.

        A sweep sends a lost attempt before it commits the loss. A process that may not judge leases sees the dead worker's row until then.
        """
        until = time.monotonic() + UNCOMMITTED_S
        while True:
            worker, may_judge = self._lease.worker, self._lease.may_judge()
            terms = ClaimTerms(
                max_lost=self._settings.worker.max_lost, may_judge=may_judge, to_reserve=to_reserve, room=room
            )
            claim = await self._effects.claim(envelope, worker, **terms)
            if claim.fence is not None:
                held.fence, held.claimed_at, held.is_limited = claim.fence, claim.claimed_at, bool(to_reserve)
                return replace(claim, refusal=None)
            if claim.refusal == "busy" and not may_judge and time.monotonic() < until:
                await self._effects.call(time.sleep, UNCOMMITTED_S / 20)
                continue
            if claim.refusal != "unleased":
                return claim
            patience_s = 5 * self._settings.worker.lease_s
            if not await self._effects.call(self._lease.wait_for_another, worker, seconds=patience_s):
                return claim

    async def import_claimed(self, envelope: Envelope, held: ActiveAttempt, room: Room) -> Claim:
        """Import the code for the reservation, under a separate claim: a crash at its import counts against this attempt (ADR 13)."""
        claim = await self.claim(envelope, held, (), room)
        if claim.fence is not None:
            ticket, call = envelope.ticket, self._effects.call
            with suppress(CodeMismatch):
                await call(self._catalog.entry, ticket.reference, ticket.fingerprint)
            held.fence = None  # first: a renewal that sees it released would count the work as lost
            await call(self._ledger.defer, envelope.key, claim.fence, 0.0)
        return claim

    def reply(self, envelope: Envelope) -> Reply | None:
        return self._ledger.reply(envelope.key) if envelope.kind == "resume" else None


def _key(envelope: Envelope, path: str) -> tuple[str, str, str]:
    """Return the cache key of a step's calls: its code and the project's `[aros]`."""
    return envelope.ticket.fingerprint, path, str(envelope.ticket.aros)


def performs_step(envelope: Envelope, reply: Reply | None) -> bool:
    """Return whether agents may be called: at a step, or when it is performed again with a person's answer."""
    return envelope.kind == "step" or (reply is not None and is_for_tool(reply))


class BreakerGate:
    """One attempt and the circuit breaker of its model: queried once, before any call; notified of the result of all calls.

    Breakers of other models that the attempt calls, of a plugin's redirect or a precheck's agents, are notified and not queried.

    Args:
        breakers: shared by all workers; None where the project has none.
        ledger: where waits and a breaker's changes of state are recorded.
        envelope: the attempt's.
        agent: its live agent.
        effects: how answers are waited for.
    """

    def __init__(
        self, breakers: Breakers | None, ledger: Ledger, envelope: Envelope, agent: Any, effects: Effects
    ) -> None:
        self._breakers, self._ledger, self._envelope, self._effects = breakers, ledger, envelope, effects
        self._model = None if breakers is None or agent is None else service_of(agent)
        self._permit = Permit()

    async def holds_back(self, fence: int) -> bool:
        """Query the breaker; if it is open, release the attempt, to be published again when it may be tried."""
        if self._breakers is None or self._model is None:
            return False
        self._permit = await self._ask(self._breakers, BreakerRequest(self._model))
        if self._permit.wait_s is None:
            return False
        key, step = self._envelope.key, self._envelope.step
        wait = spread(self._permit.wait_s, self._breakers.rules, f"{key} {fence}")
        data = {"step": step, "model": self._model, "delay_seconds": round(wait, 3)}
        await self._effects.call(self._ledger.defer, key, fence, wait, Event("flujo.breaker.waiting", data, "warning"))
        return True

    async def report(self, calls: Sequence[ModelCall]) -> None:
        """Report the attempt's calls to the breakers; to the one that let it through even if it made no call."""
        if self._breakers is None:
            return
        by_model: dict[str, list[ModelCall]] = (
            {} if self._permit.turn is None or self._model is None else {self._model: []}
        )
        for call in calls:
            by_model.setdefault(call.model, []).append(call)
        for model, its_calls in by_model.items():
            turn = self._permit.turn if model == self._model else None
            report = _report(its_calls, turn, self._breakers.rules.slow_s)
            await self._ask(self._breakers, BreakerRequest(model, report))

    async def _ask(self, breakers: Breakers, request: BreakerRequest) -> Permit:
        """Send a request or a report, and record how that has changed the breaker."""
        permit, turned = await self._effects.together(breakers.answer, request)
        if turned is not None:
            logger.warning("circuit breaker of %s is now %s: %s", request.model, turned.how, turned.figures)
            level = "warning" if turned.how == "opened" else "info"
            event = Event(f"flujo.breaker.{turned.how}", {"model": request.model, **turned.figures}, level)
            run, key = self._envelope.ticket.run, self._envelope.key
            await self._effects.call(self._ledger.note, run, [event], key=key)
        return permit


def _report(calls: Sequence[ModelCall], turn: int | None, slow_s: float) -> BreakerReport:
    slow = sum(call.seconds > slow_s for call in calls)
    counts = Counts(len(calls), sum(call.failed for call in calls), slow)
    return BreakerReport(counts, turn, max((call.asked_s for call in calls), default=0.0))
