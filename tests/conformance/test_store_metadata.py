"""The metadata of an outcome are stored with the attempt, however it ended and whichever statement merged it."""

from dataclasses import replace

import pytest
from trees import FAN, concluded, fanned_out, moved

from flujo_client.contract.read import read_result
from flujo_client.contract.trace import build_trace
from flujo_client.serial import Resolver
from flujo_worker.domain.values import BranchClosed
from tests.support.builders import decided, enqueued, failed, pipeline_of, succeeded

TOLD = {"aros": {"stage": "semantic", "transforms": ["strip-fence"], "share": 0.5}, "ü": None}
each_end = pytest.mark.parametrize("outcome", [succeeded(), failed(retryable=False)], ids=["success", "failure"])


def merged(world, decision):
    """Merge it; give the run's rows."""
    run = decision.notice.envelope.ticket.run
    assert world.commit(decision) == "merged"
    return world.run(run), world.attempts(run), world.scopes(run)


def in_the_middle(world, outcome):
    """A step of a sequence ends so."""
    new = world.record(enqueued(pipeline_of("a", "b", max_retries=1)))
    return merged(world, decided(new, outcome, fence=world.claim(new)))


def in_a_branch(world, outcome):
    """The last step of a branch ends so, and the branch with it."""
    arm, _ = fanned_out(world, 2)
    end = "succeeded" if outcome.kind == "success" else "failed"
    closed = BranchClosed(arm.address, FAN, 0)
    return merged(
        world,
        concluded(arm, moved(arm, status=end), outcome=outcome, close=end, fence=world.claim(arm), branch_end=closed),
    )


both_statements = pytest.mark.parametrize("end", [in_the_middle, in_a_branch])


@both_statements
@each_end
def test_it_stands_with_the_attempt(world, end, outcome):
    _, attempts, _ = end(world, replace(outcome, metadata=TOLD))
    assert [row.metadata for row in attempts if row.ended_at is not None and row.metadata] == [TOLD]


@both_statements
@each_end
def test_an_outcome_that_says_nothing_leaves_nothing(world, end, outcome):
    _, attempts, _ = end(world, outcome)
    assert [row.metadata for row in attempts] == [{}] * len(attempts)


@each_end
def test_results_and_traces_show_it(world, outcome):
    """M-460, M-290: at the step, and at the attempt that said it."""
    run, attempts, scopes = in_the_middle(world, replace(outcome, metadata=TOLD))
    [step, *_] = read_result(
        run, attempts, scopes, resolve=Resolver(("*",)), fetch=world.stores.blobs.fetch
    ).step_history
    assert step.metadata_ == TOLD
    [attempt] = build_trace(run, attempts, scopes, ()).children[0].children
    assert attempt.attributes["metadata"] == TOLD
