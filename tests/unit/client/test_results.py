"""What a run gives back: from the rows to the result, and from the result to an exception."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pydantic import BaseModel

from flujo_client import Pipeline, Step
from flujo_client.contract.outcome import Fault
from flujo_client.contract.read import read_result
from flujo_client.contract.records import AttemptRecord, RunRecord
from flujo_client.contract.results import Aborted, Failed, Paused, PipelineResult, StepResult
from flujo_client.errors import ClientError, PausedException, PipelineAbortSignal, RunCancelled, RunExpired, RunFailed
from flujo_client.serial import Resolver
from tests.support.builders import packed

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FAULT = Fault("agent", "ValueError", "no", "Agent execution failed with ValueError: no", code="X", suggestion="try yes")
ALL, NONE = Resolver(["*"]), Resolver([])


class Book(BaseModel):
    total: int = 0


def run(status="succeeded", **rest):
    return RunRecord("run_1", "m:p", "f" * 64, "orders", "1", status, NOW, **rest)


def attempt(step="a", number=1, status="succeeded", **rest):
    return AttemptRecord(f"run_1::{step}:{number}", "", step, number, "step", status, NOW, **rest)


def history(*attempts, resolve=ALL, fetch=dict.fromkeys):
    return read_result(run(), attempts, resolve=resolve, fetch=fetch).step_history


def result(run, *attempts, resolve=ALL, fetch=dict.fromkeys):
    return read_result(run, attempts, resolve=resolve, fetch=fetch)


loud = Pipeline([Step("shout", str.upper)])


def test_a_step_result_has_the_promised_fields_and_defaults():
    """M-460, C-22."""
    assert StepResult(name="a").model_dump() == {
        "name": "a",
        "output": None,
        "success": True,
        "attempts": 1,
        "latency_s": 0.0,
        "token_counts": 0,
        "cost_usd": 0.0,
        "feedback": None,
        "branch_context": None,
        "metadata_": {},
        "step_history": [],
    }


def test_a_step_is_what_its_last_attempt_gave_and_all_of_them_spent():
    """U-18."""
    [step] = history(
        attempt(number=1, status="failed", fault=FAULT, tokens=5, cost_usd=0.5, latency_s=1.0),
        attempt(number=2, output=packed("out"), tokens=7, cost_usd=0.25, latency_s=2.0, metadata={"k": 1}),
    )
    assert (step.output, step.success, step.attempts, step.feedback) == ("out", True, 2, None)
    assert (step.token_counts, step.cost_usd, step.latency_s, step.metadata_) == (12, 0.75, 3.0, {"k": 1})


def test_a_failed_step_says_why():
    """M-025."""
    [step] = history(attempt(status="failed", fault=FAULT))
    assert (step.success, step.output, step.feedback) == (False, None, FAULT.feedback)


def test_a_cancelled_step_gives_its_reason():
    assert history(attempt(status="cancelled", reason="cancelled"))[0].feedback == "cancelled"


@pytest.mark.parametrize("status", ["ready", "queued", "running"])
def test_a_step_that_has_not_ended_is_no_history(status):
    assert history(attempt("a"), attempt("b", status=status)) == history(attempt("a"))
    assert history(attempt(number=1, status="failed", fault=FAULT), attempt(number=2, status=status)) == []


def test_the_steps_come_in_the_order_they_were_made():
    assert [step.name for step in history(attempt("b"), attempt("a"), attempt("c"))] == ["b", "a", "c"]


def test_a_result_has_all_of_the_run():
    got = result(
        run(output=packed("out"), context=packed(Book(total=3)), tokens=9, cost_usd=0.5), attempt(output=packed("out"))
    )
    assert (got.run_id, got.status, got.success, got.output) == ("run_1", "completed", True, "out")
    assert (got.final_pipeline_context, got.total_tokens, got.total_cost_usd) == (Book(total=3), 9, 0.5)
    assert len(got.step_history) == 1


def test_what_is_only_pointed_at_is_fetched():
    large = packed("long")
    got = result(run(output=large.reference()), fetch=lambda digests: dict.fromkeys(digests, large))
    assert got.output == "long"


def test_a_class_that_is_not_to_be_had_here_comes_back_as_plain_data():
    """A client need not have the workers' code."""
    got = result(run(context=packed(Book(total=3)), output=packed([[Book(total=3)], NOW])), resolve=NONE)
    assert got.final_pipeline_context == {"total": 3}
    assert got.output == [[{"total": 3}], "2026-01-01T00:00:00+00:00"]


def test_a_failed_run_has_the_original_error():
    got = result(run("failed", reason="step 'a' failed", error=FAULT), attempt(status="failed", fault=FAULT))
    assert got.error == Failed(type_name="ValueError", message="no", code="X", category="agent", suggestion="try yes")
    assert (got.status, got.success) == ("failed", False)


def test_a_run_that_ended_without_an_error_has_its_reason():
    assert result(run("cancelled", reason="enough")).error == Failed(message="enough")
    assert result(run()).error is None


def test_a_success_raises_nothing():
    got = PipelineResult(run_id="run_1")
    assert got.raise_for_status() is got


@pytest.mark.parametrize(
    ("status", "kind"), [("failed", RunFailed), ("cancelled", RunCancelled), ("expired", RunExpired)]
)
def test_each_ending_has_its_exception_with_the_partial_result(status, kind):
    got = result(run(status, error=FAULT), attempt("a", output=packed("kept")))
    with pytest.raises(kind, match=f"run run_1 {status}: ValueError: no") as caught:
        got.raise_for_status()
    assert caught.value.result is got
    assert caught.value.suggestion == "try yes"
    assert caught.value.result.step_history[0].output == "kept"


def test_an_ending_without_a_reason_says_which_it_was():
    with pytest.raises(RunCancelled, match=r"run run_1 cancelled$"):
        result(run("cancelled")).raise_for_status()


def test_an_abort_comes_back_as_itself():
    """C-23: exception inside, value across, exception again at the client."""
    fault = Fault("control_flow", "PipelineAbortSignal", "enough", "enough", code="PIPELINE_ABORT")
    with pytest.raises(PipelineAbortSignal, match="enough"):
        result(run("failed", error=fault)).raise_for_status()


@pytest.mark.parametrize("status", ["queued", "running", "parked"])
def test_a_run_that_continues_has_no_output_yet(status):
    """None looked like an output, so that tests passed whose run was parked."""
    got = result(run(status, reason="this worker lacks a package"))
    assert (got.success, got.status, got.unchecked().output) == (False, status, None)
    for read in (got.raise_for_status, lambda: got.output):
        with pytest.raises(ClientError, match=f"run run_1 is {status}: this worker lacks a package") as caught:
            read()
        assert caught.value.error_code == "RUN_IS_LIVE"


def test_a_fault_survives_its_journey():
    assert Fault.from_tree(FAULT.to_tree() | {"from_the_future": 1}) == FAULT


@pytest.mark.parametrize("status", ["cancelled", "expired"])
def test_a_run_that_was_stopped_says_so_as_a_signal(status):
    """Requirements §2.4."""
    assert result(run(status, reason="never mind")).signals == [Aborted(reason="never mind")]


@pytest.mark.parametrize("code", ["PIPELINE_ABORT", "INFINITE_REDIRECT", "INFINITE_FALLBACK"])
def test_control_flow_is_a_signal_and_a_failure_is_none(code):
    """C-23."""
    assert result(run("failed", error=replace(FAULT, code=code))).signals == [Aborted(reason="no")]
    assert result(run("failed", error=FAULT)).signals == []
    assert result(run()).signals == []


def test_a_question_is_a_signal_and_raised_to_whoever_asks_for_the_result():
    """M-449, C-23: class, code and message."""
    waiting = PipelineResult(run_status="paused", pauses=[Paused(message="go?"), Paused(message="and this?")])
    assert waiting.signals == waiting.pauses
    with pytest.raises(PausedException, match=r"go\?; and this\?") as raised:
        waiting.raise_for_status()
    assert (raised.value.error_code, raised.value.result) == ("PAUSED", waiting)


@pytest.mark.parametrize(
    ("status", "kind"), [("failed", RunFailed), ("cancelled", RunCancelled), ("paused", PausedException)]
)
def test_the_output_of_a_run_without_success_raises_what_it_ended_with(status, kind):
    result = PipelineResult(run_id="run_1", run_status=status, error=Failed(type_name="ValueError", message="no stock"))
    with pytest.raises(kind) as raised:
        _ = result.output
    assert raised.value.result is result
    assert result.unchecked().output is None
    assert result.model_dump()["output"] is None


def test_a_result_travels_with_its_output():
    result = PipelineResult(output=7)
    assert (result.output, result.unchecked().output, PipelineResult(**result.model_dump()).output) == (7, 7, 7)


def test_the_engines_result_need_not_be_checked(engine):
    def fail(_data):
        raise ValueError("no stock")

    run_id = engine.run(Step("a", fail) >> Step("b", fail)).run_id
    assert engine.result(run_id, check=False).output is None
    with pytest.raises(RunFailed, match="ValueError: no stock"):
        _ = engine.result(run_id).output


def test_the_engine_runs_what_the_client_enqueues(engine):
    assert engine.run(Step("a", str.upper), "x").output == "X"
    assert engine.run(f"{__name__}:loud", "x").output == "X"
