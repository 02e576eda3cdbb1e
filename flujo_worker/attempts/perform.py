"""An attempt: claim → policy → outcome → conclude. One message in, one disposition out; nothing expected is raised."""

from __future__ import annotations

import logging
import time
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from flujo_client.contract.outcome import NO_USAGE, Event, Fault, Outcome
from flujo_client.errors import AgentError, FlujoError, SnapshotTooLarge
from flujo_client.serial import Packed, Resolver, decode, encode
from flujo_worker import failpoints
from flujo_worker.attempts.catalog import Catalog, Entry, Unfit
from flujo_worker.attempts.classify import ErrorCategory, describe
from flujo_worker.attempts.policies import POLICIES
from flujo_worker.attempts.work import Done, Stumble, Work
from flujo_worker.domain.values import Notice
from flujo_worker.errors import DispatchError, StoreError
from flujo_worker.observe.log import telling
from flujo_worker.observe.redact import redact
from flujo_worker.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flujo_client.config import Settings
    from flujo_client.contract.envelope import Envelope
    from flujo_client.contract.outcome import Usage
    from flujo_worker.aio import Loop
    from flujo_worker.attempts.classify import During
    from flujo_worker.attempts.lease import Held, Lease
    from flujo_worker.coordinator import Coordinator
    from flujo_worker.ports import Ledger, Refusal, Verdict

logger = logging.getLogger(__name__)

Disposition = Literal["parked", "cancelled"]


class Attempts:
    """Performs attempts in this process.

    Args:
        ledger: where attempts are claimed.
        coordinator: who is told what came of them.
        lease: this process's right to work.
        loop: the process's event loop.
        settings: limits, timeouts and allowed imports.
    """

    def __init__(self, ledger: Ledger, coordinator: Coordinator, lease: Lease, loop: Loop, settings: Settings) -> None:
        self._ledger, self._coordinator, self._lease, self._loop, self._settings = (
            ledger,
            coordinator,
            lease,
            loop,
            settings,
        )
        self.catalog = Catalog(settings.allowed_imports)
        self._resolve = Resolver(settings.allowed_imports)
        self._threads = Threads("flujo-agent")

    def close(self) -> None:
        """Let go of the threads that sync agents run in."""
        self._threads.shutdown()

    def perform(self, envelope: Envelope) -> Verdict | Refusal | Disposition:
        """Perform one attempt, or refuse the delivery; say which."""
        with self._lease.holding(envelope.key) as held:
            if held is None:
                return "busy"
            refusal = self._claim(envelope.key, held)
            if refusal is not None:
                logger.info("attempt %s not claimed: %s", envelope.key, refusal)
                return refusal
            failpoints.hit("after_claim")
            return self._carry_out(envelope, held)

    def _claim(self, key: str, held: Held) -> Refusal | None:
        while True:
            worker = self._lease.worker
            claim = self._ledger.claim(
                key, worker, max_lost=self._settings.worker.max_lost, may_judge=self._lease.may_judge()
            )
            if claim.fence is not None:
                held.fence = claim.fence
                return None
            if claim.refusal != "unleased":
                return claim.refusal
            if not self._lease.wait_for_another(worker, seconds=5 * self._settings.worker.lease_s):
                return "unleased"

    def _carry_out(self, envelope: Envelope, held: Held) -> Verdict | Disposition:
        fence = held.fence or 0
        started = time.monotonic()
        try:
            entry = self.catalog.entry(envelope.ticket.reference, envelope.ticket.fingerprint)
        except Unfit as finding:
            reason = redact(str(finding))
            logger.error("run %s is parked: %s", envelope.ticket.run, reason)  # noqa: TRY400 - the finding is all there is
            self._ledger.park(envelope.key, fence, reason)
            return "parked"
        with telling(envelope, worker=self._lease.worker) as story:
            outcome = self._outcome(envelope, entry, held, started, story)
        if outcome is None:
            return "cancelled"
        return self._conclude(Notice(envelope, fence, outcome), started)

    def _conclude(self, notice: Notice, started: float) -> Verdict:
        """Conclude; an outcome that Postgres will not take fails its attempt, or it would stay `running` for as long as we live."""
        try:
            return self._coordinator.conclude(notice)
        except (StoreError, DispatchError):
            raise
        except Exception as error:
            logger.exception("the outcome of %s could not be merged", notice.envelope.key)
            bare = self._failed(_fault(error, "system", None), notice.outcome.usage, started, ())
            return self._coordinator.conclude(replace(notice, outcome=bare))

    def _outcome(
        self, envelope: Envelope, entry: Entry, held: Held, started: float, story: Sequence[Event]
    ) -> Outcome | None:
        try:
            done = self._run(self._work(envelope, entry), envelope, held)
            output, context = self._packed(envelope, done)
        except CancelledError:
            if held.cancelled or self._lease.is_stopping:
                return None
            fault = _fault(AgentError("the agent cancelled its own task"), "agent", None)
            return self._failed(fault, NO_USAGE, started, story)
        except Stumble as stumble:
            fault = _fault(stumble.error, stumble.during, stumble.timeout_s)
            return self._failed(fault, stumble.usage, started, story)
        except Exception as error:  # noqa: BLE001 - whatever it is, it becomes the outcome's fault
            return self._failed(_fault(error, "system", None), NO_USAGE, started, story)
        latency = time.monotonic() - started
        return Outcome("success", output, context, usage=done.usage, latency_s=latency, events=tuple(story))

    def _work(self, envelope: Envelope, entry: Entry) -> Work:
        envelope = self._fetched(envelope)
        step = entry.steps[envelope.step]
        context = None if envelope.context is None else decode(envelope.context.tree(), resolve=self._resolve)
        return Work(
            step=step,
            agent=self.catalog.agent(step.agent),
            data=decode(envelope.input.tree(), resolve=self._resolve),
            context=context,
            guidance=envelope.guidance,
            timeout_s=step.config.timeout_s or self._settings.agents.agent_timeout_s,
            threads=self._threads,
        )

    def _fetched(self, envelope: Envelope) -> Envelope:
        """Fetch what the envelope only points at, and check it against its digest."""
        wanted = {packed.digest for packed in envelope.references}
        if not wanted:
            return envelope
        found = self._ledger.fetch(wanted)
        bad = [digest for digest in wanted if digest not in found or not found[digest].matches(digest)]
        if bad:
            raise FlujoError(f"snapshot {bad[0][:12]} is missing or does not fit its digest", code="SNAPSHOT_LOST")
        return envelope.inline(found)

    def _run(self, work: Work, envelope: Envelope, held: Held) -> Done:
        future = self._loop.submit(_perform(envelope.kind, work))
        held.on_cancel.append(future.cancel)
        if held.cancelled:
            future.cancel()
        return future.result()

    def _packed(self, envelope: Envelope, done: Done) -> tuple[Packed, Packed | None]:
        output = self._pack(done.output, f"output of step '{envelope.step}'", done.usage)
        if done.context is None:
            return output, None
        context = self._pack(done.context, "context", done.usage)
        before = envelope.context
        return output, None if before is not None and before.digest == context.digest else context

    def _pack(self, value: object, what: str, usage: Usage) -> Packed:
        """Pack a value strictly; a value that cannot travel fails the step, and trying again would not help."""
        most = self._settings.limits.snapshot_max_bytes
        try:
            packed = Packed.of(encode(value, path=what))
            length = len(packed.json())
            if length > most:
                raise SnapshotTooLarge(f"{length:,} bytes of JSON; at most {most:,} may travel", path=what)
        except FlujoError as error:
            raise Stumble(error, "system", usage) from error
        return packed

    def _failed(self, fault: Fault, usage: Usage, started: float, story: Sequence[Event]) -> Outcome:
        kind: Literal["aborted", "failure"] = "aborted" if fault.category == ErrorCategory.CONTROL_FLOW else "failure"
        latency = time.monotonic() - started
        return Outcome(kind, fault=fault, usage=usage, latency_s=latency, events=tuple(story))


async def _perform(kind: str, work: Work) -> Done:
    return await POLICIES[kind](work)


def _fault(error: BaseException, during: During, timeout_s: float | None) -> Fault:
    info = describe(error, during=during, timeout_s=timeout_s)
    return Fault.from_tree({**info.model_dump(mode="json"), "code": info.code or ""})
