"""Continue runs whose code has changed, if this worker's code may (ADR 37)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

from flujo_client.contract.carry_on import Obstacle, RunState, compatible
from flujo_client.contract.code import CODE_CHANGED, AwaitedCode, ParkCause, all_differences
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.outcome import Event
from flujo_client.frozen import frozen
from flujo_client.plan.plan import OnChange, Plan
from flujo_client.plan.plan_difference import Difference
from flujo_worker.domain.carry_on import PlanMove, handover_delay_s, move
from flujo_worker.domain.values import FanOut
from flujo_worker.errors import Unreadable
from flujo_worker.ports import ClaimId, Stores

logger = logging.getLogger(__name__)

TRIES: Final = 3
"""How often a run that changed during the check is checked again."""
ELSEWHERE_S: Final = 0.5
"""The least seconds until an attempt is published again that lacks a module here."""
SHOWN: Final = 3
"""The maximum number of differences, or obstacles, in a reason."""


class Send(Protocol):
    """Publishes messages of one run, and opens the chord of a fan-out that begins with them."""

    def __call__(self, envelopes: Sequence[Envelope], fan_out: FanOut | None, *, first: bool = False) -> None: ...


@frozen
class CarryOnResult:
    """The result for a run whose code has changed.

    moved: it continues under the new plan. unneeded: it uses that plan already, or has ended. busy: an attempt runs under the old plan, or
    the run has changed meanwhile; try again. refused: for `reason`.
    """

    verdict: Literal["moved", "unneeded", "busy", "refused"]
    reason: str = ""
    cause: ParkCause = CODE_CHANGED
    """Why the run is parked if nothing can move it."""


class CodeChanges:
    """Moves runs to another plan of their pipeline.

    Args:
        stores: where runs are stored.
        send: publishes.
        on_change: the policy of pipelines that set none.
        control_queue: where starts go.
        build: the build of the user's code that is here.
        worker: returns this process's present incarnation; None: an operator, who may move a run to any plan, regardless of the policy.

    Attributes:
        record: stores the code that a pipeline's steps have here, by its reference.
    """

    def __init__(
        self,
        stores: Stores,
        send: Send,
        *,
        on_change: OnChange,
        control_queue: str,
        build: str | None = None,
        worker: Callable[[], str] | None = None,
    ) -> None:
        self._stores, self._send, self._worker = stores, send, worker
        self._on_change, self._control_queue, self._build = on_change, control_queue, build
        self.record: Callable[[str], object] = lambda _: None
        self._adopted: set[str] = set()
        self._recorded: set[str] = set()

    def carry_on(self, run: str, plan: Plan, *, mine: str | None = None, tries: bool = False) -> CarryOnResult:
        """Move a run to a plan if its rules and its policy allow it.

        `mine` is the attempt of it that this worker has claimed and not begun; `tries`: only return what would happen.

        Raises: Unreadable: its rows cannot be read.
        """
        for _ in range(TRIES):
            state = self._stores.plan_moves.run_state(run)
            if state is None or state.has_ended or state.fingerprint == plan.fingerprint:
                return CarryOnResult("unneeded")
            old = self._stores.code.plan(state.fingerprint)
            if old is None:
                raise Unreadable(f"no plan with fingerprint {state.fingerprint}")
            changed = self._changed(old, plan, state)
            refused = self._refused(old, plan, state, mine, changed)
            if refused is not None:
                self._adopt(state.reference, plan)
                return refused
            if tries:
                return CarryOnResult("moved")
            worker = None if self._worker is None else self._worker()
            planned = move(old, plan, state, changed, control_queue=self._control_queue, worker=worker)
            match self._stores.plan_moves.carry_on(state.reference, planned):
                case "moved":
                    self._publish(planned)
                    logger.info("run %s continues under plan %s", run, plan.fingerprint[:12])
                    return CarryOnResult("moved")
                case "older":
                    older = "this worker was started before the code that the run uses, so its own code is not newer"
                    cause = ParkCause("newer", old.fingerprint[:12])
                    return CarryOnResult("refused", f"{older}: {_names(old, plan)}", cause)
        return CarryOnResult("busy", "it changed while it was checked")

    def hand_over(self, envelope: Envelope, claim: ClaimId, reason: str, awaited: AwaitedCode | None) -> bool:
        """Leave a claimed attempt, which this worker cannot perform, to a live one that can. Return False if there is none.

        Its message goes to the head of its queue, where any worker may take it, and again after a while that grows. `awaited` is the code
        that it waits for, if not that of its plan.
        """
        ticket, worker = envelope.ticket, "" if self._worker is None else self._worker()
        fingerprint = ticket.fingerprint if awaited is None else None
        if not self._stores.plan_moves.has_able_worker(ticket.run, fingerprint, envelope.queue, but=worker):
            return False
        delay_s = handover_delay_s(claim.fence or 0)
        event = Event("run.waits_for_old_code", {"reason": reason})
        if self._stores.attempts.defer(claim, delay_s, event) and not delay_s:
            self._send([envelope], None, first=True)
        return True

    def leave_to_other_build(self, envelope: Envelope, claim: ClaimId, reason: str) -> bool:
        """Leave a claimed attempt, whose step lacks a module, to a live worker with another build. Return False if none may have it."""
        ticket, worker = envelope.ticket, "" if self._worker is None else self._worker()
        if not self._stores.plan_moves.has_other_build(ticket.run, envelope.key, envelope.queue, worker=worker):
            return False
        event = Event("attempt.lacks_module", {"reason": reason, "build": self._build}, "warning")
        return self._stores.attempts.defer(claim, max(ELSEWHERE_S, handover_delay_s(claim.fence or 0)), event)

    def _changed(self, old: Plan, plan: Plan, state: RunState) -> Sequence[Difference]:
        if self._worker is not None and plan.fingerprint not in self._recorded:
            self.record(state.reference)
            self._recorded.add(plan.fingerprint)
        return all_differences(old, plan, self._stores.code.code_on_record(state.run, plan.fingerprint))

    def _refused(
        self, old: Plan, plan: Plan, state: RunState, mine: str | None, changed: Sequence[Difference]
    ) -> CarryOnResult | None:
        policy = old.on_change or self._on_change
        if self._worker is not None and policy != "carry_on":
            cause = ParkCause("pinned" if policy == "pin" else "code", _shortened(changed))
            return CarryOnResult("refused", _policy(policy, old, plan, cause.what), cause)
        obstacles = compatible(old, plan, state, mine=mine)
        if not obstacles:
            return None
        if all(each.rule == "running" for each in obstacles):
            return CarryOnResult("busy", str(obstacles[0]))
        shown = [each for each in obstacles if each.rule != "running"]
        words = _shortened(shown)
        return CarryOnResult("refused", f"{words}: {_names(old, plan)}", ParkCause("code", words))

    def _adopt(self, reference: str, plan: Plan) -> None:
        """Store the plan, so that differences can be shown."""
        if self._worker is not None and plan.fingerprint not in self._adopted:
            self._stores.code.adopt_plan(reference, plan, self._worker())
            self._adopted.add(plan.fingerprint)

    def _publish(self, planned: PlanMove) -> None:
        """Publish again what was published under the old plan; attempts that wait for a time are left to the sweeper."""
        new = {each.key: str(each.new) for each in planned.attempts}
        out = [each.key for each in planned.state.open_attempts if each.status in ("queued", "running")]
        envelopes = self._stores.backlog.envelopes([new.get(key, key) for key in out])
        if envelopes:
            self._send(envelopes, None)


def _policy(policy: OnChange, old: Plan, plan: Plan, words: str) -> str:
    if policy == "pin":
        return f"it is pinned to the code that it was started with, so only a worker with that code takes it ({words}): {_names(old, plan)}"
    return f"its code has changed ({words}), and its pipeline parks such runs: {_names(old, plan)}; `flujo runs upgrade` moves it"


def _names(old: Plan, plan: Plan) -> str:
    return f"this worker's code has fingerprint {plan.fingerprint[:12]}, the run uses {old.fingerprint[:12]}"


def _shortened(findings: Sequence[Difference | Obstacle]) -> str:
    words = list(map(str, findings))
    rest = len(words) - SHOWN
    return "; ".join((*words[:SHOWN], f"and {rest} more") if rest > 0 else words)
