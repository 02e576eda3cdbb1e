"""What the limits allow runs to its end: ten thousand steps in a row, ten thousand branches side by side.

The agents are left out, which would be most of the time: each attempt is claimed and concluded as if it had been performed.
"""

import pytest

from flujo_client.contract.envelope import TASK_JOIN, Envelope, JoinSignal
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step
from flujo_client.serial import loads
from flujo_client.sizes import MAX_BRANCHES, MAX_STEPS
from flujo_worker.domain.values import AttemptReport
from tests.support.builders import echo, packed, pipeline_of, succeeded

pytestmark = pytest.mark.large


def in_a_row():
    return pipeline_of(*(f"s{number}" for number in range(MAX_STEPS)))


def side_by_side():
    return Pipeline([Step.parallel("fan", {f"b{number}": Step("s", echo) for number in range(MAX_BRANCHES)})])


def conclude_all(engine):
    """Carry out every message without its agent."""
    while engine.bus:
        wire = loads(engine.bus.popleft())
        if wire["task"] == TASK_JOIN:
            join_signal = JoinSignal.from_wire(wire)
            envelope = engine.coordinator.join_if_due(join_signal.run, join_signal.address)
        else:
            envelope = Envelope.from_wire(wire)
        claim = engine.stores.attempts.claim(envelope.key, "local", max_lost=1)
        outcome = succeeded(1) if envelope.kind == "step" else succeeded()
        concluded = engine.coordinator.conclude(AttemptReport(envelope, claim.fence, outcome))
        if concluded.is_part:
            engine._send_join_signal(engine._chords.part(envelope))


@pytest.mark.parametrize(("make", "output"), [(in_a_row, 1), (side_by_side, {f"b{n}": 1 for n in range(MAX_BRANCHES)})])
def test_as_much_as_the_limits_allow_runs_to_its_end(engine, make, output):
    run = engine.enqueue(make(), 1)
    conclude_all(engine)
    record = engine.stores.reads.read_run(run)
    assert (
        record.status,
        engine.stores.blobs.fetch([record.output.digest]).get(record.output.digest, record.output),
    ) == (
        "succeeded",
        packed(output),
    )
