"""Decide a run again, notice by notice, and find the first decision that differs.

The coordinator and its rules are the real ones; rows are in memory, and the answers of models and user code are read from the recording. So
it shows whether this code decides as the code that ran then. External causes (a cancel, a deadline, a limit that was passed) are recorded
and not decided, so work that they left open proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

from flujo_client.address import END
from flujo_client.contract.envelope import Envelope, RunHeader
from flujo_client.contract.outcome import Outcome, OutcomeKind
from flujo_client.contract.records import NewRun, NoticeRecord, Recording, RunRecord, ScopeRecord
from flujo_client.errors import ReplayError
from flujo_client.frozen import frozen
from flujo_client.plan.plan import Backoff, Nodes, Plan
from flujo_worker.coordinator.coordinator import Coordinator
from flujo_worker.domain.values import AttemptReport
from flujo_worker.ports import Member
from flujo_worker.replay.recorded import Answers, RecordedStores, ReplayMismatch, token

WORKER = "replay"
CONCLUDED = ("succeeded", "failed")
_KINDS: dict[str | None, OutcomeKind] = {
    "error": "failure",
    "aborted": "aborted",
    "paused": "aborted",
    "lost": "lost",
    "limit": "limit",
}


@frozen
class Replayed:
    """The result of a replay.

    Attributes:
        notices: how many decisions were made again.
        difference: the first one that is not what it was; None when there is none.
        key: the work row at which that is.
    """

    run: str
    notices: int
    difference: str | None = None
    key: str | None = None


def replay(
    recording: Recording, notices: Sequence[NoticeRecord], scopes: Sequence[ScopeRecord], children: Sequence[RunRecord]
) -> Replayed:
    """Decide a run again. `notices` are all its work rows, in the order of their commits. Raises ReplayError: needed values are no longer stored."""
    if not any(each.made == 1 for each in notices):
        raise ReplayError(f"run {recording.id} cannot be replayed: its work rows have been deleted")
    unknown = next((each for each in notices if not _has_place(recording.plan, each)), None)
    if unknown is not None:
        why = f"step '{unknown.step}' ran under another plan, and the run's present plan has another name for it"
        raise ReplayError(f"run {recording.id} cannot be replayed: {why}")
    known = {each.id: each for each in children}
    replayed = _Replay(recording, notices, known).run(scopes)
    if replayed.difference is None:
        return replayed
    other = _Replay(recording, notices, known, failures_last=True).run(scopes)
    return other if other.difference is None else replayed


def _has_place(plan: Plan, notice: NoticeRecord) -> bool:
    """Return whether a plan has the place of a notice: a run that continues under changed code may have left it (ADR 37)."""
    try:
        location = plan.locate(notice.address)
        is_at_node = location.nodes is not None and not notice.step.endswith(END)
    except KeyError:
        return False
    return not is_at_node or notice.step in (location.nodes or Nodes()).places


class _Replay:
    """One pass through the notices, in the order in which their commits began.

    Of two concurrent ones, the one that began first may have been merged last; that shows in a sibling of a branch whose failure aborted
    their fan-out. With `failures_last` the failure comes last instead.
    """

    def __init__(
        self,
        recording: Recording,
        notices: Sequence[NoticeRecord],
        children: dict[str, RunRecord],
        *,
        failures_last: bool = False,
    ) -> None:
        self._recording, self._notices, self.done = recording, notices, 0
        self._stores, self._answers = RecordedStores(children), Answers()
        merged = [each for each in notices if each.status in CONCLUDED]
        last = ("failed",) if failures_last else ()
        self._left = {each.key: (each.status in last, place, each) for place, each in enumerate(merged)}
        self._joins = [each.key for each in merged if each.kind == "join"]
        self._open: list[tuple[bool, int, NoticeRecord]] = []
        self._stores.leases.register_worker(Member(WORKER, "", 0, "", 1), 1.0)
        self._coordinator = Coordinator(self._stores, lambda *_: None, self._answers, backoff=Backoff())
        first = next(each for each in notices if each.made == 1)
        self._stores.client.record(NewRun(self._envelope(first), recording.plan, digest=""))
        if recording.from_step is not None:
            names = [node.name for node in recording.plan.locate(recording.root).nodes or ()]
            self._stores.begin_at(recording.id, names.index(recording.from_step))

    def run(self, scopes: Sequence[ScopeRecord]) -> Replayed:
        at = None
        try:
            while self._left or self._open:
                at = self._following()
                self._conclude(at)
                self.done += 1
            at = None
            self._answers.begin(())
            self._compare_rows()
            self._compare_scopes(scopes)
            self._compare_end()
        except ReplayMismatch as unlike:
            return Replayed(self._recording.id, self.done, str(unlike), unlike.key or (at.key if at else None))
        return Replayed(self._recording.id, self.done)

    def _following(self) -> NoticeRecord:
        """Return the next one that can be concluded."""
        self._look_for_more()
        first = self._open[0][:2] if self._open else (inf, inf)
        joins = [self._left[key] for key in self._joins if key in self._left]
        for each in [each for last, place, each in joins if (last, place) < first]:
            self._coordinator.join_if_due(self._recording.id, each.address)
            self._look_for_more()
        if not self._open:
            self._wind_down_aborted()
        if not self._open:
            key = next(iter(self._left))
            raise ReplayMismatch(f"no decision leads to {key} any more", key)
        return heappop(self._open)[-1]

    def _look_for_more(self) -> None:
        for key in self._stores.claim_all(self._left, WORKER):
            heappush(self._open, self._left.pop(key))

    def _wind_down_aborted(self) -> None:
        """Wind down aborted fan-outs, as a sweep does.

        The recorded abort may have closed a fan-out inside before its join was created; here the join exists, and nothing concludes it.
        """
        for run, fan_out in self._stores.scopes.aborted(len(self._notices)):
            self._coordinator.wind_down(run, fan_out, by="sweeper")
        self._look_for_more()

    def _conclude(self, then: NoticeRecord) -> None:
        self._answers.begin(then.answers)
        row = self._stores.row(then.key)
        if row is None or row.ended_at is None:  # a question that could not be asked has ended when it is made
            (envelope,) = self._stores.backlog.envelopes([then.key])
            concluded = self._coordinator.conclude(AttemptReport(envelope, 1, _outcome(then, envelope)))
            if concluded.verdict != "merged":
                raise ReplayMismatch(f"the outcome of {then.key} is no longer merged: {concluded.verdict}")
        self._compare_row(then)

    def _compare_row(self, then: NoticeRecord) -> None:
        now = self._stores.row(then.key)
        if now is not None and (now.status, now.reason) != (then.status, then.reason):
            present, past = _status_text(now.status, now.reason), _status_text(then.status, then.reason)
            raise ReplayMismatch(f"{then.key} is {present}, but was {past}")

    def _compare_rows(self) -> None:
        """Compare which rows were made, except joins. Those that were concluded have been compared; any other is made by its signal, which is not recorded."""
        now = {row.key for row in self._stores.reads.read_attempts(self._recording.id) if row.kind != "join"}
        then = {each.key for each in self._notices if each.kind != "join"}
        unlike = [f"{key} is created, but was not recorded" for key in now - then]
        unlike += [f"{key} is no longer created" for key in then - now]
        if unlike:
            raise ReplayMismatch(min(unlike))

    def _compare_scopes(self, scopes: Sequence[ScopeRecord]) -> None:
        then = {scope.address: scope for scope in scopes if "taken_over_from" not in scope.metadata}
        now = {scope.address: scope for scope in self._stores.reads.read_scopes(self._recording.id)}
        for address in sorted(then.keys() ^ now.keys()):
            what = "opened, but was not recorded" if address in now else "no longer opened"
            raise ReplayMismatch(f"scope '{address}' is {what}")
        for address, scope in sorted(then.items()):
            if scope.status in CONCLUDED and now[address].status != scope.status:
                raise ReplayMismatch(f"scope '{address}' is {now[address].status}, but was {scope.status}")
            if scope.status in CONCLUDED and now[address].metadata != scope.metadata:
                raise ReplayMismatch(f"scope '{address}' has {now[address].metadata}, but had {scope.metadata}")

    def _compare_end(self) -> None:
        then, now = self._recording, self._stores.reads.read_run(self._recording.id)
        if not now.is_live and now.status != then.status:
            raise ReplayMismatch(f"the run is {now.status}, but was {then.status}")
        if now.is_live and then.status == "succeeded":
            raise ReplayMismatch(f"the run has not ended, but was {then.status}")

    def _envelope(self, first: NoticeRecord) -> Envelope:
        recording = self._recording
        own = recording.id, recording.reference, recording.fingerprint, recording.queue
        ticket = RunHeader(*own, tenant=recording.tenant, root=recording.root)
        place, context = (first.address, first.step, first.number), token("context") if recording.has_context else None
        return Envelope(ticket, *place, 0, token("input"), context, queue=first.queue, kind=first.kind)


def _outcome(then: NoticeRecord, envelope: Envelope) -> Outcome:
    """Return the row's outcome: a join can only fail by user code that was called while it was decided."""
    if then.status == "succeeded" or (then.kind == "join" and then.fault is None):
        context = None if envelope.context is None else token(f"context after {then.key}")
        return Outcome("success", token(f"output of {then.key}"), context)
    return Outcome(_KINDS[then.reason], fault=then.fault)


def _status_text(status: str, reason: str | None) -> str:
    return f"{status} ({reason})" if reason else status
