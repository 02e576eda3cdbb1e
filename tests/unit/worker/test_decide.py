"""What follows from an outcome: a pure function of plan and notice (SYS-06)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_client import Backoff, Step, StepConfig
from flujo_client.contract.outcome import Fault, Outcome
from flujo_worker.domain.transitions import ATTEMPT, RUN, SCOPE, require
from flujo_worker.domain.values import CloseAttempt, UpdateScope
from flujo_worker.errors import IllegalTransition
from tests.support.builders import SPENT, decided, enqueued, failed, following, packed, pipeline_of, succeeded

THREE = enqueued(pipeline_of("a", "b", "c", max_retries=2), context={"n": 1}, queue="mine")
outcomes = st.sampled_from(
    [
        succeeded("out", {"n": 2}),
        succeeded("out"),
        failed(),
        failed("validation"),
        failed(retryable=False),
        Outcome("aborted", fault=Fault("control_flow", "PipelineAbortSignal", "stop", "stop")),
        Outcome("lost", fault=Fault("system", "AttemptLost", "gone", "gone")),
    ]
)


@given(outcomes, st.sampled_from("abc"), st.integers(1, 3))
def test_the_same_notice_gives_the_same_decision(outcome, step, number):
    at = _at(step, number)
    assert decided(THREE, outcome, at=at) == decided(THREE, outcome, at=at)


@given(outcomes, st.sampled_from("abc"), st.integers(1, 3))
def test_a_decision_has_an_end_or_a_next_attempt_and_a_closed_scope_with_the_end(outcome, step, number):
    decision = decided(THREE, outcome, at=_at(step, number))
    assert (decision.end is None) == bool(decision.next)
    assert (decision.end is None) == (decision.move.status == "open")
    assert decision.close.status == ("succeeded" if outcome.kind == "success" else "failed")


@given(outcomes, st.sampled_from("abc"), st.integers(1, 3))
def test_only_a_success_merges(outcome, step, number):
    """M-006."""
    move = decided(THREE, outcome, at=_at(step, number)).move
    assert move.merges == (outcome.kind == "success")
    assert move.merges or (move.output, move.context) == (None, None)


def test_a_success_continues_with_the_next_step():
    decision = decided(THREE, succeeded("out", {"n": 2}))
    assert decision.moves == (UpdateScope("", 0, 1, merges=True, output=packed("out"), context=packed({"n": 2})),)
    after = following(decision)
    assert (after.step, after.number, after.guidance, after.queue) == ("b", 1, None, "mine")


def test_a_failure_is_tried_again_with_what_was_wrong():
    decision = decided(THREE, failed(feedback="it broke: wrong tone", guidance="wrong tone"))
    assert decision.close == CloseAttempt("failed", "error")
    assert [after.delay_s for after in decision.next] == [4.0]
    after = following(decision)
    assert (after.step, after.number, after.guidance) == ("a", 2, "wrong tone")
    assert (after.input, after.context, after.version) == (THREE.first.input, THREE.first.context, THREE.first.version)
    assert [(event.name, event.level) for event in decision.events] == [("flujo.retry", "warning")]


def test_the_last_attempts_failure_ends_the_run():
    decision = decided(THREE, failed(), at=_at("b", 3))
    assert (decision.end.status, decision.end.reason) == ("failed", "step 'b' failed")
    assert decision.end.fault == failed(key=f"{THREE.first.ticket.run}::b:3").fault
    assert [event.name for event in decision.events] == ["step.failed", "run.failed"]


def test_a_failure_that_judges_no_answer_changes_nothing_that_is_asked():
    again = following(decided(THREE, failed(feedback="HTTP 503")))
    told = following(decided(THREE, failed(guidance="wrong tone")))
    assert (again.number, again.guidance) == (2, None)
    assert following(decided(THREE, failed(feedback="HTTP 503"), at=told)).guidance == "wrong tone"


@pytest.mark.parametrize(("kind", "reason"), [("failure", "error"), ("aborted", "aborted"), ("lost", "lost")])
def test_an_end_says_how_its_last_attempt_closed(kind, reason):
    fault = Fault("system", "E", "m", "f")
    assert decided(THREE, Outcome(kind, fault=fault)).close == CloseAttempt("failed", reason)


def test_a_failure_without_a_fault_is_final():
    assert decided(THREE, Outcome("failure")).end.status == "failed"


def test_a_steps_own_waits_come_before_the_workers():
    step = Step("a", str, config=StepConfig(backoff=Backoff(base_s=9.0, jitter=0.0)))
    new = enqueued(pipeline_of("b") >> step >> pipeline_of("c"))
    decision = decided(new, failed(), at=_at("a", 1, new))
    assert [after.delay_s for after in decision.next] == [9.0]


def test_the_longer_wait_is_taken_of_ours_and_the_services():
    assert [after.delay_s for after in decided(THREE, failed(retry_after_s=30.0)).next] == [30.0]
    assert [after.delay_s for after in decided(THREE, failed(retry_after_s=1.0)).next] == [4.0]


def test_a_step_with_a_queue_of_its_own_goes_there_and_back():
    new = enqueued(pipeline_of("a") >> pipeline_of("b", queue="gpu") >> pipeline_of("c"))
    there = following(decided(new, succeeded()))
    back = following(decided(new, succeeded(), at=there))
    assert (there.queue, back.queue) == ("gpu", new.first.ticket.queue)


def test_what_was_spent_travels_with_the_notice():
    assert decided(THREE, succeeded(usage=SPENT)).notice.outcome.usage == SPENT


@pytest.mark.parametrize("table", [RUN, SCOPE, ATTEMPT], ids=["run", "scope", "attempt"])
def test_nothing_follows_what_is_final(table):
    final = {status for status, after in table.items() if not after}
    assert {"succeeded", "failed", "cancelled"} <= final
    for status in final:
        with pytest.raises(IllegalTransition):
            require(table, status, "running")


@pytest.mark.parametrize("table", [RUN, SCOPE, ATTEMPT], ids=["run", "scope", "attempt"])
def test_every_status_that_can_follow_is_in_the_table(table):
    assert set().union(*table.values()) <= set(table)


def _at(step, number, new=THREE):
    return replace(new.first, step=step, number=number)
