"""What a question turns a run to: kept from people by an import, led on from by a state machine, asked in a step's or a fallback's stead."""

import pytest
from container_parts import Notes, echo, fails, more, seen
from human_parts import ask, event_data, paused_run

from flujo_client import (
    AgentProcessors,
    DynamicParallelRouterStep,
    ImportStep,
    ParallelStep,
    Pipeline,
    PipelineContext,
    StateMachineStep,
    Step,
    StepConfig,
)
from flujo_client.errors import PausedException, PipelineAbortSignal, PipelineError, RunFailed

ONCE = StepConfig(max_retries=0)


def of(*steps, model=Notes):
    return Pipeline(list(steps), context_model=model)


def inside(result, *names):
    """A step result by the names that lead to it."""
    steps = result.step_history
    for name in names:
        found = next(each for each in steps if each.name == name)
        steps = found.step_history
    return found


def broken(*_):
    raise ValueError("no answer is good enough")


def unattended(*steps, **rest):
    body = Pipeline(list(steps) or [Step("first", more), ask(message="May it go out?")])
    return ImportStep("child", pipeline=body, inherit_context=True, propagate_hitl=False, **rest)


@pytest.mark.parametrize("own_run", [False, True])
def test_a_question_that_is_not_let_through_fails_its_step_and_is_named(engine, own_run):
    """Requirements §2.3: the run does not pause, and no one is asked."""
    run = paused_run(engine, of(unattended(own_run=own_run), Step("end", more)), 0)
    result = engine.result(run)
    assert (result.run_status, engine.approvals(run), event_data(engine, run, "flujo.paused")) == ("failed", [], [])
    assert (result.error.type_name, result.error.category) == ("HumanInputError", "human")
    assert result.error.code == "QUESTION_NOT_PROPAGATED"
    with pytest.raises(RunFailed, match=r"step 'ask' asks a person, which import 'child' forbids.*May it go out"):
        result.raise_for_status()


def test_the_history_has_the_question_that_no_one_was_asked(engine):
    result = engine.result(paused_run(engine, of(unattended()), 0))
    body = inside(result, "child", "child")
    assert [(each.name, each.success) for each in body.step_history] == [("first", True), ("ask", False)]
    assert "May it go out?" in body.step_history[1].feedback


def test_its_context_does_not_say_that_it_is_paused(engine):
    """M-449: the run failed without waiting, and the status says so."""
    result = engine.result(paused_run(engine, of(unattended(), model=PipelineContext), 0))
    assert (result.final_pipeline_context.status.value, result.final_pipeline_context.pause_message) == (
        "failed",
        None,
    )


@pytest.mark.parametrize(
    ("options", "output"),
    [({"on_failure": "skip"}, 1), ({"on_failure": "continue_with_default", "default": 8}, 9)],
)
def test_on_failure_says_what_becomes_of_the_run(engine, options, output):
    result = engine.result(paused_run(engine, of(unattended(**options), Step("end", more)), 0))
    assert (result.run_status, result.output) == ("succeeded", output)


@pytest.mark.parametrize(
    "box",
    [
        lambda step: ParallelStep("fan", branches={"a": step}),
        lambda step: ImportStep("inner", pipeline=Pipeline([step]), inherit_context=True),
        lambda step: ImportStep("inner", pipeline=Pipeline([step]), inherit_context=True, own_run=True),
    ],
)
def test_it_keeps_every_question_inside_it_however_deep(engine, box):
    run = paused_run(engine, of(unattended(box(ask()))), 0)
    assert (engine.result(run).error.code, engine.approvals(run)) == ("QUESTION_NOT_PROPAGATED", [])


def test_a_question_that_is_kept_has_a_fallback_like_any_failure(engine):
    """M-406: a policy instead of a person."""
    result = engine.result(
        paused_run(engine, of(unattended(ask(fallback_step=Step("policy", lambda _: "as ever")))), 0)
    )
    assert (result.run_status, result.output) == ("succeeded", "as ever")


class Walk(Notes):
    current_state: str | None = None


def machine(*transitions, **states):
    given = {"draft": Pipeline([Step("write", more), ask(), Step("after", more)]), "sign": Step("sign", more)}
    return StateMachineStep(
        "m", states=given | states, start_state="draft", end_states=["done"], transitions=list(transitions)
    )


TO_SIGN = {"from": "draft", "to": "sign", "on": "pause"}
DONE = {"from": "*", "to": "done"}


def test_an_answer_leads_on_to_the_state_of_the_pause(engine):
    """Requirements §2.3: that state gets the answer, and the rest of the state that asked is left out."""
    run = paused_run(engine, of(machine(TO_SIGN, DONE), model=Walk), 0)
    assert engine.result(run).run_status == "paused"
    result = engine.answer(run, 41)
    assert (result.run_status, result.output) == ("succeeded", 42)
    box = inside(result, "m")
    assert [[step.name for step in state.step_history] for state in box.step_history] == [["write", "ask"], ["sign"]]
    assert all(state.success for state in box.step_history)
    assert box.metadata_ == {"iterations": 2, "final_state": "done"}
    assert result.final_pipeline_context.current_state == "done"


def test_without_one_that_fits_the_state_continues_behind_the_question(engine):
    for transitions in (
        (DONE,),
        ({"from": "sign", "to": "done", "on": "pause"}, DONE),
        ({**TO_SIGN, "to": "draft"}, DONE),
    ):
        run = paused_run(engine, of(machine(*transitions)), 0)
        assert engine.answer(run, 41).output == 42
        assert inside(engine.result(run), "m", "draft").step_history[-1].name == "after"


def test_the_condition_sees_the_answer_and_the_context(engine):
    """So a person's word chooses the way."""
    yes = {**TO_SIGN, "when": lambda answer, context: answer == "yes" and context is not None}
    for said, last in (("yes", "sign"), ("no", "draft")):
        run = paused_run(engine, of(machine(yes, DONE, sign=Step("sign", echo), draft=Pipeline([ask()]))), 0)
        assert inside(engine.answer(run, said), "m").step_history[-1].name == last


def test_what_the_answer_wrote_is_kept(engine):
    """M-450: history and sink."""
    draft = Pipeline([ask(sink_to="scratchpad.said"), Step("never", fails)])
    run = paused_run(engine, of(machine(TO_SIGN, DONE, draft=draft), model=PipelineContext), 0)
    context = engine.answer(run, 5).final_pipeline_context
    assert (context.scratchpad["said"], context.hitl_history[0].answer, context.status.value) == (5, 5, "completed")


def test_a_condition_that_raises_fails_the_machine(engine):
    run = paused_run(engine, of(machine({**TO_SIGN, "when": broken}, DONE)), 0)
    result = engine.answer(run, 5)
    assert (result.run_status, inside(result, "m", "draft").success) == ("failed", True)
    assert "no answer is good enough" in inside(result, "m").feedback


def test_an_answer_may_lead_straight_to_the_end(engine):
    run = paused_run(engine, of(machine({**TO_SIGN, "to": "done"}, DONE)), 0)
    assert engine.answer(run, "so be it").output == "so be it"


def test_visits_are_counted_there_too(engine):
    """A person who never says yes is asked that often and no more."""
    again = {"from": "other", "to": "draft", "on": "pause"}
    box = machine({**TO_SIGN, "to": "other"}, again, draft=ask(), other=ask("ask"))
    box = StateMachineStep(
        "m",
        states=box.states,
        start_state="draft",
        end_states=["done"],
        transitions=[*box.transitions, DONE],
        max_visits=3,
    )
    run = paused_run(engine, of(box), 0)
    for _ in range(3):
        result = engine.answer(run, "no")
    assert result.run_status == "failed"
    assert "visited 3 states without reaching an end state" in result.error.message


def test_a_question_deeper_in_a_state_is_its_containers_own(engine):
    """It continues there, and the state ends as it ends."""
    deep = ParallelStep("fan", branches={"a": ask()})
    run = paused_run(engine, of(machine(TO_SIGN, DONE, draft=Pipeline([deep]))), 0)
    assert engine.answer(run, 3).output == {"a": 3}


def test_a_person_may_be_the_fallback(engine):
    """M-406, M-451: what the step could not do someone says."""
    shaky = Step("shaky", fails, config=ONCE, fallback_step=ask())
    run = paused_run(engine, of(Step("first", more), shaky, Step("end", more)), 0)
    assert [each.address for each in engine.approvals(run)] == ["shaky/fallback"]
    result = engine.answer(run, 41)
    assert (result.run_status, result.output) == ("succeeded", 42)
    step = inside(result, "shaky")
    assert (step.success, step.output, step.metadata_["fallback_triggered"]) == (True, 41, True)
    assert [each.name for each in step.step_history] == ["shaky", "ask"]


def test_who_is_the_fallback_and_does_not_answer_fails_the_step_with_both(engine):
    shaky = Step("shaky", fails, config=ONCE, fallback_step=ask(expires_s=60.0))
    run = paused_run(engine, of(shaky), 0)
    engine.pass_time(61)
    feedback = inside(engine.result(run), "shaky").feedback
    assert feedback.startswith("Original error: ")
    assert "Fallback error: " in feedback
    assert "was not answered within 60 s" in feedback


def test_a_step_that_fails_after_its_answer_falls_back_without_it(engine):
    """M-406, C-13: the fallback has the input and the context that the step had; the answer is told in the history alone."""
    primary = Pipeline([ask(), Step("heed", fails, config=ONCE)]).as_step("decide")
    run = paused_run(engine, of(primary.fallback(Step("policy", seen))), "in")
    result = engine.answer(run, "no use")
    assert (result.run_status, result.final_pipeline_context.hitl_history) == ("succeeded", [])
    step = inside(result, "decide")
    assert [(each.name, each.success) for each in step.step_history] == [("decide", False), ("policy", True)]
    assert inside(result, "decide", "decide", "decide", "ask").output == "no use"


def test_a_question_whose_time_is_over_has_a_fallback(engine):
    run = paused_run(engine, of(ask(expires_s=60.0, fallback_step=Step("policy", lambda _: "as ever"))), 0)
    engine.pass_time(61)
    assert engine.result(run).output == "as ever"


def test_a_person_who_aborts_is_not_stood_in_for(engine):
    """M-042, C-23: an abort behind the answer passes the fallback untouched."""

    def heed(answer):
        raise PipelineAbortSignal(f"a person says {answer}")

    primary = Pipeline([ask(), Step("heed", heed)]).as_step("decide")
    run = paused_run(engine, of(primary.fallback(Step("policy", more))), 0)
    with pytest.raises(PipelineAbortSignal, match="a person says stop"):
        engine.answer(run, "stop").raise_for_status()


def test_a_pause_transition_to_nowhere_is_refused(engine):
    with pytest.raises(PipelineError, match="to 'nowhere' is not a state"):
        engine.enqueue(of(machine({**TO_SIGN, "to": "nowhere"}, DONE)), 0)


class Asks:
    """An agent, a plugin or a validator that asks a person instead of answering, the first time and every time."""

    def run(self, data):
        raise PausedException(f"what of {data}?")

    def validate(self, data):
        raise PausedException(f"what of {data}?")

    def __call__(self, output):
        raise PausedException(f"what of {output}?")


@pytest.mark.parametrize(
    "step",
    [
        Step("x", Asks()),
        Step("x", echo, plugins=[Asks()]),
        Step("x", echo, validators=[Asks()]),
        Step("x", echo, processors=AgentProcessors(output_processors=[Asks()])),
    ],
    ids=["agent", "plugin", "validator", "processor"],
)
def test_a_pause_that_is_raised_asks_a_person(engine, step):
    """M-042: never a failure. The answer is the step's output, and no agent is asked again."""
    run = paused_run(engine, of(step, Step("end", more)), 4)
    [question] = engine.approvals(run)
    assert (engine.result(run).run_status, question.step, question.message) == ("paused", "x", "what of 4?")
    with pytest.raises(PausedException, match=r"what of 4\?"):
        engine.result(run).raise_for_status()
    result = engine.answer(run, 41)
    assert (result.run_status, result.output) == ("succeeded", 42)
    assert [(row.kind, row.status, row.reason) for row in engine.history(run) if row.step == "x"] == [
        ("step", "failed", "paused"),
        ("resume", "succeeded", None),
    ]


def test_it_waits_in_the_context_as_any_question_does(engine):
    """M-449, M-450: a message that says nothing is the default, which names the step."""

    def asks(_):
        raise PausedException

    run = paused_run(engine, of(Step("x", asks, sink_to="scratchpad.said"), model=PipelineContext), 0)
    waiting = engine.result(run).final_pipeline_context
    assert (waiting.status.value, waiting.pause_message) == ("paused", "Step 'x' requires human input.")
    context = engine.answer(run, "so").final_pipeline_context
    assert (context.scratchpad["said"], context.hitl_history[0].answer, context.status.value) == (
        "so",
        "so",
        "completed",
    )


def test_what_it_had_written_before_is_not_kept(engine):
    """C-13: the attempt did not succeed."""

    def asks(_, *, context):
        context.count = 100
        raise PausedException("go?")

    run = paused_run(engine, of(Step("x", asks)), 0)
    assert engine.answer(run, 1).final_pipeline_context.count == 0


def test_a_raised_pause_is_no_reason_to_fall_back_and_leads_on_in_a_machine(engine):
    run = paused_run(engine, of(Step("x", Asks(), fallback_step=Step("never", echo)), Step("end", more)), 0)
    assert engine.answer(run, 1).output == 2
    run = paused_run(engine, of(machine(TO_SIGN, DONE, draft=Pipeline([Step("x", Asks()), Step("never", fails)]))), 0)
    assert engine.answer(run, 1).output == 2


def test_a_raised_pause_gives_its_lane_to_the_next_branch(engine):
    fan = ParallelStep("fan", branches={"a": Step("x", Asks()), "b": Step("y", more)}, max_concurrency=1)
    run = paused_run(engine, of(fan), 0)
    assert engine.result(run).run_status == "paused"
    assert engine.answer(run, 7).output == {"a": 7, "b": 1}


def test_a_raised_pause_is_kept_by_an_import_that_lets_nothing_through(engine):
    run = paused_run(engine, of(unattended(Step("x", Asks()))), 0)
    result = engine.result(run)
    assert (result.error.code, engine.approvals(run)) == ("QUESTION_NOT_PROPAGATED", [])
    assert "what of 0?" in result.error.message
    assert (engine.history(run)[-1].step, engine.history(run)[-1].reason) == ("x", "error")


def test_a_router_that_asks_is_told_its_branches(engine):
    router = DynamicParallelRouterStep(
        "route", router_agent=Asks(), branches={"a": Step("y", more), "b": Step("z", more)}
    )
    run = paused_run(engine, of(router), 0)
    assert engine.answer(run, ["b"]).output == {"b": 1}
