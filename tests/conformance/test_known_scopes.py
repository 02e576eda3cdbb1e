"""What a process remembers of the scopes above an attempt that it claimed ahead is what it would read."""

from dataclasses import replace

import pytest

from flujo_client import Pipeline, Step
from flujo_worker.coordinator.answers import KnownScopes
from flujo_worker.domain.decide import decide
from flujo_worker.domain.values import AttemptReport, CallUserCode, ReadScope
from tests.support.builders import decided, echo, enqueued, following, succeeded


def answer(_output, _context):
    return "yes"


def loop(name, *steps):
    return Step.loop_until(name, Pipeline(list(steps)), lambda _output, _context: False, max_loops=3)


def step(name):
    return Step(name, echo)


NESTED = Pipeline([step("a"), loop("outer", step("b"), loop("inner", step("c"), step("d")), step("e")), step("f")])
CHOOSING = Pipeline(
    [step("a"), loop("outer", step("b"), Step.branch_on("fork", answer, {"yes": Pipeline([step("c"), step("d")])}))]
)
ANSWERS = {"exit_condition": False, "condition": ("yes", "yes")}


class Walk:
    """Carries out a run, each attempt claimed ahead, and compares what is remembered with what is recorded."""

    def __init__(self, world, pipeline):
        self.world, self.new = world, world.record(enqueued(pipeline, context={"n": 1}))
        self.known, self.found, self.read = KnownScopes(), [], []

    def to_its_end(self):
        envelope, fence, claim_id = self.new.first, self.world.claim(self.new), None
        for number in range(200):
            decision = self.decide(AttemptReport(envelope, fence, succeeded(number, {"n": number}), claim_id))
            committed = self.world.stores.attempts.commit(decision)
            assert committed.verdict == "merged"
            if decision.end is not None:
                return
            self.known.note(decision, committed.claim_id)
            envelope, fence, claim_id = following(decision), 1, committed.claim_id
        raise AssertionError("the run does not end")

    def decide(self, notice):
        deciding, reply = decide(self.new.plan, notice), None
        while True:
            try:
                request = deciding.send(reply)
            except StopIteration as end:
                [*ahead] = (replace(each, claimed_by="w1") for each in end.value.next)
                return replace(end.value, next=tuple(ahead))
            reply = self.reply(notice, request)

    def reply(self, notice, request):
        if isinstance(request, CallUserCode):
            return request.values[0] if request.role == "keep_output" else ANSWERS[request.role]
        row, known = self.world.scope(notice.envelope.ticket.run, request.address), self.known.find(notice, request)
        if known is None:
            self.read.append(request.address)
        else:
            assert known == row
            self.found.append(request.address)
        return row


@pytest.mark.parametrize(("pipeline", "known", "read"), [(NESTED, 9 + 3, 3 + 1), (CHOOSING, 3 + 3, 3 + 1)])
def test_a_known_scope_is_as_it_is_recorded(world, pipeline, known, read):
    """Only the scope that continues after a container, whose own attempt was before it, is read once for each container."""
    walk = Walk(world, pipeline)
    walk.to_its_end()
    assert (len(walk.found), len(walk.read)) == (known, read)


def test_a_claim_that_is_not_the_first_knows_nothing(world):
    """The scopes may have moved since: another worker had the attempt, or the run goes by another plan."""
    new = enqueued(NESTED)
    decision = decided(new, succeeded())
    known, envelope, request = KnownScopes(), following(decision), ReadScope("outer")
    known.note(decision, "c7")
    assert known.find(AttemptReport(envelope, 1, succeeded(), "c7"), request) is not None
    assert known.find(AttemptReport(envelope, 2, succeeded(), "c8"), request) is None
    assert known.find(AttemptReport(new.first, 1, succeeded(), "c7"), request) is None
