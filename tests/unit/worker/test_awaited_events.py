"""Steps that wait for events, in one process: early, late, of a wrong type, in parallel, in child runs; and what cannot be sent (ADR 58)."""

import pytest
from pydantic import BaseModel

from flujo_client import HumanInTheLoopStep, Pipeline, PipelineContext, Step, WaitForEvent
from flujo_client.errors import ConfigurationError, EventError, HumanInputError, PipelineError, RunFailed, RunNotFound
from flujo_client.sizes import MAX_EVENTS
from tests.support.builders import packed


class Payment(BaseModel):
    amount: int


class Shop(PipelineContext):
    paid: Payment | None = None


def waits(**options):
    return Pipeline([WaitForEvent("pay", event="paid", **options)])


def started(engine, pipeline, value=None, **options):
    run = engine.enqueue(pipeline, value, **options)
    engine.drain()
    return run


def refused(engine, run, *event, code, **options):
    with pytest.raises(EventError) as error:
        engine.send(run, *event, **options)
    assert error.value.error_code == code
    return error.value.message


def test_the_value_is_the_output_and_goes_where_the_step_says(engine):
    run = started(engine, waits(input_schema=Payment, sink_to="paid"), context=Shop())
    assert engine.result(run, check=False).run_status == "paused"
    assert engine.approvals(run) == []
    engine.send(run, "paid", {"amount": 3})
    result = engine.result(run)
    assert (result.output, result.final_pipeline_context.paid) == (Payment(amount=3), Payment(amount=3))
    assert result.final_pipeline_context.hitl_history == []
    names = [event.name for event in engine.story(run)]
    assert names.index("run.event_sent") < names.index("run.event_received") < names.index("flujo.resumed")


def test_an_event_may_come_before_its_step(engine):
    run = started(engine, Pipeline([HumanInTheLoopStep("ask"), WaitForEvent("paid")]))
    assert engine.send(run, "paid", 1, id="a") == engine.send(run, "paid", 1, id="a") == "a"
    assert engine.answer(run, "yes").output == 1


def test_an_early_event_needs_no_sweep(engine):
    run = engine.enqueue(Pipeline([WaitForEvent("paid"), Step("b", lambda data: data + 1)]))
    engine.stores.client.send(run, "paid", "a", packed(1))
    while engine.bus:
        engine.deliver(engine.bus.popleft())
    assert (engine.stores.reads.read_run(run).status, engine.result(run).output) == ("succeeded", 2)


def test_branches_that_wait_for_one_name_take_one_event_each(engine):
    run = started(engine, Pipeline([Step.parallel("both", {each: WaitForEvent(each, event="go") for each in "ab"})]))
    engine.send(run, "go", 1)
    assert engine.result(run, check=False).run_status == "paused"
    engine.send(run, "go", 2)
    assert sorted(engine.result(run).output.values()) == [1, 2]


def test_a_child_run_gets_the_event_that_its_parent_was_sent(engine):
    inner = Pipeline([WaitForEvent("paid")], name="inner")
    run = started(engine, Pipeline([inner.as_step("inner", inherit_context=False, own_run=True)]))
    engine.send(run, "paid", 5)
    assert engine.result(run).output == 5


def test_after_its_time_a_step_fails_or_has_its_default(engine):
    run, other = (
        started(engine, waits(timeout_s=60)),
        started(engine, waits(timeout_s=60, on_timeout="default", default=0)),
    )
    engine.pass_time(61)
    assert engine.result(other).output == 0
    with pytest.raises(RunFailed, match="step 'pay' got no event 'paid' within 60 s"):
        _ = engine.result(run).output
    assert engine.history(run)[-1].fault.code == "EVENT_TIMED_OUT"


def test_a_value_that_does_not_fit_is_refused_at_once_or_leaves_the_step_waiting_for_the_rest_of_its_time(engine):
    run = started(engine, waits(input_schema=Payment, timeout_s=60))
    told = refused(engine, run, "paid", {"amount": "much"}, code="EVENT_REFUSED")
    assert "amount" in told
    early = started(engine, Pipeline([HumanInTheLoopStep("ask"), *waits(input_schema=Payment, timeout_s=60).steps]))
    engine.send(early, "paid", {"amount": "much"})
    engine.answer(early, "go on")
    assert engine.result(early, check=False).run_status == "paused"
    engine.pass_time(59)
    engine.send(early, "paid", {"amount": 1})
    assert engine.result(early).output == Payment(amount=1)


def test_a_refused_event_does_not_give_the_step_more_time(engine):
    run = started(engine, waits(input_schema=Payment, timeout_s=60))
    engine.pass_time(40)
    engine.stores.client.send(run, "paid", "1", packed({"type": "object"}))
    engine.drain()
    asked = engine.history(run)[-1]
    assert (engine.history(run)[-2].fault.code, asked.status) == ("ANSWER_REFUSED", "paused")
    engine.pass_time(21)
    assert engine.history(run)[-1].fault.code == "EVENT_TIMED_OUT"


def test_what_a_run_never_takes_is_refused_by_name(engine):
    run = started(engine, waits())
    told = refused(engine, run, "pay", 1, code="UNKNOWN_EVENT")
    assert told.endswith("it waits for: 'paid'")
    for name in ("", "  ", "x" * 201, 7):
        assert refused(engine, run, name, code="INVALID_EVENT").endswith(f"got {name!r}"[:46])
    engine.send(run, "paid", 1, id="a")
    refused(engine, run, "paid", 2, id="a", code="EVENT_CONFLICT")
    assert engine.send(run, "paid", 1, id="a") == "a"
    assert "has ended (succeeded): it takes no events any more" in refused(engine, run, "paid", 1, code="RUN_ENDED")
    with pytest.raises(RunNotFound):
        engine.send("no-such-run", "paid")


def test_a_run_keeps_so_many_events_and_no_more(engine):
    run = started(engine, Pipeline([HumanInTheLoopStep("ask"), WaitForEvent("go")]))
    for number in range(MAX_EVENTS):
        engine.stores.client.send(run, "go", str(number), packed(number))
    refused(engine, run, "go", 0, code="EVENT_LIMIT")
    assert engine.send(run, "go", 7, id="7") == "7", "which is there"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"event": ""}, "event must be a text"),
        ({"timeout_s": 0}, "timeout_s must be a number of seconds above 0"),
        ({"timeout_s": float("inf")}, "above 0 and up to 316224000, ten years, got inf"),
        ({"on_timeout": "escalate"}, "on_timeout 'escalate' must be one of fail, default"),
        ({"on_timeout": "default"}, "on_timeout 'default' needs timeout_s"),
        ({"timeout_s": 1, "on_timeout": "default", "input_schema": Payment, "default": "x"}, "does not fit"),
        ({"input_schema": {"type": 7}}, "is not a JSON Schema"),
    ],
)
def test_a_step_that_cannot_wait_is_refused_before_it_is_sent(engine, options, told):
    with pytest.raises((PipelineError, ConfigurationError, HumanInputError), match=told):
        engine.enqueue(Pipeline([WaitForEvent("pay", **options)]))


def test_yaml_has_them(engine):
    text = "steps: [{kind: wait_for_event, name: pay, event: paid, input_schema: {type: integer}, timeout_s: 5}]"
    pipeline = Pipeline.from_yaml_text(text)
    run = started(engine, pipeline)
    engine.send(run, "paid", 4)
    assert engine.result(run).output == 4
