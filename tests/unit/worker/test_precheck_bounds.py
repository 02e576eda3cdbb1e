"""What the reasoning precheck may never do: cost more than its caps, block an attempt, or swallow a signal (M-202)."""

import asyncio
import threading

import pytest
from test_precheck import BARE, PLANNED, THREADS, Desk, Recorder

from flujo_client.contract.outcome import Usage
from flujo_client.contract.processing import PrecheckSettings
from flujo_client.errors import PipelineAbortSignal
from flujo_worker.attempts.precheck import Precheck
from flujo_worker.runtime.attempt_run import charge

WITHIN, ABOVE = Usage(10, 200, 1, 0.5), Usage(10, 201, 1, 0.5)
FOREVER_S = 60
BRIEFLY_S = 0.05


class UsageLimitExceeded(Exception):
    """A limit, as the class's name tells."""


async def never(_data):
    await asyncio.sleep(FOREVER_S)


@pytest.mark.parametrize(("spent", "reason"), [(WITHIN, "validator"), (ABOVE, "over_token_cap")])
def test_a_verdict_that_took_more_than_the_cap_does_not_count(spent, reason):
    """M-116, M-125."""
    desk = Desk(validator_agent=Recorder(True, spent=spent), max_tokens=200)
    desk.before()
    assert [each["reason"] for each in desk.verdicts] == [reason]


def test_what_a_verdict_above_the_cap_cost_is_kept():
    """M-125."""
    desk = Desk(validator_agent=Recorder((False, "no"), spent=ABOVE), inject_feedback="prepend")
    assert desk.before() == PLANNED
    assert (desk.precheck.usage, desk.precheck.feedback) == (ABOVE, None)


def test_no_sample_is_paid_for_after_one_above_the_cap():
    """M-116, M-118, M-125."""
    planner = Recorder("plan", spent=ABOVE)
    desk = Desk(consensus_agent=planner, consensus_samples=5)
    desk.before()
    assert (len(planner.asked), desk.verdicts) == (1, [{"result": "skipped", "reason": "over_token_cap"}])


def test_an_answer_above_the_cap_that_cannot_be_read_is_above_the_cap():
    """M-116: cut in the middle, most likely."""
    desk = Desk(validator_agent=Recorder('{"passed": tr', spent=ABOVE))
    desk.before()
    assert desk.verdicts == [{"result": "skipped", "reason": "over_token_cap"}]


def test_what_all_gates_spent_is_summed():
    """M-125."""
    desk = Desk(
        validator_agent=Recorder(True, spent=Usage(1, 2, 1, 0.25)), consensus_agent=Recorder("a", "b", spent=WITHIN)
    )
    desk.before()
    assert desk.precheck.usage == Usage(21, 402, 3, 1.25)


def test_a_validator_that_takes_too_long_is_left():
    """M-125."""
    desk = Desk(validator_agent=never, timeout_s=BRIEFLY_S, inject_feedback="prepend")
    assert desk.before() == PLANNED
    assert desk.verdicts == [{"result": "skipped", "reason": "timeout"}]


def test_a_validator_that_is_not_async_is_left_too():
    """M-125."""
    released = threading.Event()
    desk = Desk(validator_agent=lambda _plan: released.wait(FOREVER_S), timeout_s=BRIEFLY_S)
    desk.before()
    released.set()
    assert desk.verdicts == [{"result": "skipped", "reason": "timeout"}]


def test_what_was_spent_before_the_time_ran_out_is_kept():
    """M-125."""
    desk = Desk(validator_agent=never, consensus_agent=Recorder("a", "b", spent=WITHIN), timeout_s=BRIEFLY_S)
    desk.before()
    assert (desk.verdicts[-1]["reason"], desk.precheck.usage.requests) == ("timeout", 2)


@pytest.mark.parametrize("answer", [True, ValueError("gave up")])
def test_a_validator_that_will_not_be_cancelled_is_late_whatever_it_says(answer):
    """M-125: an answer, or an error that it made of the cancellation."""
    desk = Desk(validator_agent=Stubborn(answer), timeout_s=BRIEFLY_S)
    desk.before()
    assert desk.verdicts == [{"result": "skipped", "reason": "timeout"}]


class Stubborn:
    def __init__(self, answer):
        self.answer = answer

    async def run(self, _plan):
        try:
            await asyncio.sleep(FOREVER_S)
        except asyncio.CancelledError:
            if isinstance(self.answer, Exception):
                raise self.answer from None
        return self.answer


def test_the_pass_after_generation_is_bounded_in_time_too():
    """M-125."""
    desk = Desk(validator_agent=never, timeout_s=BRIEFLY_S)
    desk.before(BARE)
    desk.after(PLANNED)
    assert desk.verdicts == [{"result": "skipped", "reason": "timeout"}]


@pytest.mark.parametrize("error", [ValueError("no"), TimeoutError(), KeyError("plan")])
def test_a_validator_that_raises_never_fails_the_attempt(error):
    """M-120."""
    desk = Desk(validator_agent=Recorder(error), inject_feedback="prepend")
    assert desk.before() == PLANNED
    assert desk.verdicts == [{"result": "skipped", "reason": "validator_error", "error": type(error).__name__}]


def test_a_validator_that_cannot_be_found_never_fails_the_attempt():
    """M-115, M-120."""
    desk = Desk(validator_agent="agents:gone")
    desk.precheck._agent_of = {}.__getitem__
    desk.before()
    assert desk.verdicts == [{"result": "skipped", "reason": "validator_error", "error": "KeyError"}]


def test_a_validator_that_answers_nonsense_is_skipped_and_paid_for():
    """M-113, M-125."""
    desk = Desk(validator_agent=Recorder("it is fine", spent=WITHIN))
    desk.before()
    assert (desk.verdicts[0]["error"], desk.precheck.usage) == ("TypeError", WITHIN)


def test_what_a_failing_validator_had_spent_is_kept():
    """M-125."""

    class Spends:
        def run(self, _plan):
            error = ValueError("no")
            charge(error, WITHIN)
            raise error

    desk = Desk(validator_agent=Spends())
    desk.before()
    assert desk.precheck.usage == WITHIN


def test_a_planner_that_raises_never_fails_the_attempt():
    """M-118, M-120."""
    judge = Recorder(True)
    desk = Desk(consensus_agent=Recorder(ValueError("no")), validator_agent=judge)
    desk.before()
    assert desk.verdicts == [{"result": "skipped", "reason": "consensus_error", "error": "ValueError"}]


@pytest.mark.parametrize("role", ["validator_agent", "consensus_agent"])
@pytest.mark.parametrize(
    "signal", [PipelineAbortSignal("stop"), UsageLimitExceeded("enough"), asyncio.CancelledError()]
)
def test_a_signal_passes_through_untouched(role, signal):
    """M-042, M-120, M-126."""
    desk = Desk(**{role: Recorder(signal)})
    with pytest.raises(type(signal)) as caught:
        desk.before()
    assert caught.value is signal or isinstance(signal, asyncio.CancelledError)
    assert desk.verdicts == []


@pytest.mark.parametrize("kind", [ValueError, TimeoutError])
def test_a_signal_behind_another_error_passes_too(kind):
    """M-042: wrapped by an agent's own library."""
    error = kind("wrapped")
    error.__cause__ = PipelineAbortSignal("stop")
    with pytest.raises(kind, match="wrapped"):
        Desk(validator_agent=Recorder(error)).before()


def test_a_signal_passes_after_generation_too():
    """M-042."""
    desk = Desk(validator_agent=Recorder(PipelineAbortSignal("stop")))
    desk.before(BARE)
    with pytest.raises(PipelineAbortSignal):
        desk.after(PLANNED)


def test_an_attempt_that_is_cancelled_meanwhile_is_cancelled():
    """M-042: the precheck's own deadline is not mistaken for it, nor it for the deadline."""
    precheck = Precheck(
        PrecheckSettings(enabled=True, validator_agent=never),
        context=None,
        agent_of=lambda agent: agent,
        threads=THREADS,
        schema=None,
        shadow=False,
    )

    async def cancelled():
        attempt = asyncio.create_task(precheck.before(PLANNED))
        await asyncio.sleep(0)
        attempt.cancel()
        await attempt

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())


def test_a_long_feedback_is_bounded_where_it_is_shown_and_where_it_is_used():
    """M-125."""
    desk = Desk(validator_agent=Recorder((False, "x" * 1_000_000)))
    desk.before()
    assert (len(desk.verdicts[0]["feedback"]), len(desk.precheck.feedback)) == (200, 2000)


def test_a_secret_in_the_feedback_is_not_told():
    """SYS-21."""
    desk = Desk(validator_agent=Recorder((False, "never use password=hunter2")))
    desk.before()
    assert "hunter2" not in str(desk.told)
