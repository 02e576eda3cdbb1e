"""The rows that a replay reads, in every store."""

from dataclasses import replace

import pytest

from tests.support.builders import decided, enqueued, failed, pipeline_of, succeeded

ANSWERS = ({"role": "exit_condition", "path": "loop", "answer": True}, {"role": "patch", "path": "p", "answer": None})


@pytest.fixture
def new(world):
    return world.record(enqueued(pipeline_of("a", "b", max_retries=1)))


def test_a_recording_says_what_the_run_began_with(world, new):
    recording, ticket = world.recording(new.first.ticket.run), new.first.ticket
    assert (recording.id, recording.reference, recording.fingerprint) == (
        ticket.run,
        ticket.reference,
        new.plan.fingerprint,
    )
    assert (recording.queue, recording.tenant, recording.root, recording.status) == (
        ticket.queue,
        ticket.tenant,
        "",
        "queued",
    )
    assert (recording.plan, recording.has_context) == (new.plan, new.first.context is not None)


def test_notices_come_in_the_order_of_their_commits_with_their_answers(world, new):
    """What has not ended comes last; each row says which it was of those that were made."""
    run, first = new.first.ticket.run, new.first
    world.conclude(new, failed(), fence=world.claim(new))
    world.pass_time(1)
    (retry,) = world.stores.backlog.envelopes([f"{run}::a:2"])
    decision = decided(new, succeeded(), fence=world.claim(retry), at=retry)
    world.commit(replace(decision, answers=ANSWERS))
    told = world.notices(run)
    assert [(each.made, each.key, each.status, each.reason) for each in told] == [
        (1, first.key, "failed", "error"),
        (2, retry.key, "succeeded", None),
        (3, f"{run}::b:1", "ready", None),
    ]
    assert [each.answers for each in told] == [(), ANSWERS, ()]
    assert told[0].fault is not None
    assert (told[1].fault, told[1].kind, told[1].step, told[1].number, told[1].queue) == (
        None,
        "step",
        "a",
        2,
        retry.queue,
    )
