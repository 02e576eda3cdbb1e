"""Code between the steps asks a person: a condition, a mapper, a merge function, a question's text (M-042, C-23)."""

from __future__ import annotations

import pytest
from human_parts import ask
from pydantic import Field

from flujo_client import (
    AgenticLoopStep,
    AgentProcessors,
    ConditionalStep,
    DynamicParallelRouterStep,
    HumanInTheLoopStep,
    ImportStep,
    LoopStep,
    MapStep,
    Pipeline,
    PipelineContext,
    Step,
    StepConfig,
)
from flujo_client.errors import PausedException, PipelineError
from flujo_client.pipeline.machine import StateMachineStep
from flujo_worker.replay.replay import replay
from tests.support.memory import asked

ONCE = StepConfig(max_retries=0)


def echo(data):
    return data


def fails(_):
    raise ValueError("no")


class Asks:
    """A function that asks once, and gives what `then` makes of the answer. It keeps how often it was called."""

    def __init__(self, then=lambda answer, *_: answer):
        self.then, self.calls, self.answers = then, 0, []

    def __call__(self, *given, resume_input=None):
        self.calls += 1
        if resume_input is None:
            raise PausedException("left or right?")
        self.answers.append(resume_input)
        return self.then(resume_input, *given)


class Work:
    """An agent that keeps what it was given."""

    def __init__(self):
        self.given = []

    async def run(self, data):
        self.given.append(data)
        return data


@pytest.fixture
def work():
    return Work()


def body(work):
    return Pipeline([Step("work", work, config=StepConfig(max_retries=0))])


def loop(work, **roles):
    wanted = {"exit_condition_callable": lambda *_: True, **roles}
    return LoopStep("box", loop_body_pipeline=body(work), max_loops=3, **wanted)


def merge(answer, context, _contexts):
    context.status_line = answer
    return context


class Line(PipelineContext):
    status_line: str = ""
    items: list[str] = Field(default_factory=lambda: ["x"])


def route(work, **options):
    return DynamicParallelRouterStep("box", router_agent=lambda _: ["only"], branches={"only": body(work)}, **options)


def agentic(work, **options):
    def plan(brief):
        if brief["turn"] == 2:
            return {"type": "finish", "final_answer": "done"}
        return {"type": "run_agent", "agent_name": "work", "input_data": "in"}

    return AgenticLoopStep("box", planner=plan, registry={"work": work}, **options)


def giving(asks, then):
    asks.then = then
    return asks


PLACES = {
    "a condition": lambda work, asks: ConditionalStep("box", condition_callable=asks, branches={"left": body(work)}),
    "a branch's input": lambda work, asks: ConditionalStep(
        "box", condition_callable=lambda *_: "left", branches={"left": body(work)}, branch_input_mapper=asks
    ),
    "a branch's output": lambda work, asks: ConditionalStep(
        "box", condition_callable=lambda *_: "left", branches={"left": body(work)}, branch_output_mapper=asks
    ),
    "a loop's first input": lambda work, asks: loop(work, initial_input_to_loop_body_mapper=asks),
    "a loop's next input": lambda work, asks: loop(
        work, exit_condition_callable=lambda *_: len(work.given) == 2, iteration_input_mapper=asks
    ),
    "a loop's condition": lambda work, asks: loop(work, exit_condition_callable=asks),
    "a loop's output": lambda work, asks: loop(work, loop_output_mapper=asks),
    "a merge": lambda work, asks: Step.parallel("box", {"only": body(work)}, merge_strategy=giving(asks, merge)),
    "a reducer": lambda work, asks: Step.parallel("box", {"only": body(work)}, reduce=asks),
    "a merge of a router": lambda work, asks: route(work, merge_strategy=giving(asks, merge)),
    "a reducer of a router": lambda work, asks: route(work, reduce=asks),
    "a map's output": lambda work, asks: MapStep(
        "box", pipeline_to_run=body(work), iterable_input="items", finalize=asks
    ),
    "a map's output, in parallel": lambda work, asks: MapStep(
        "box", pipeline_to_run=body(work), iterable_input="items", parallel=True, finalize=asks
    ),
    "an agentic loop's output": lambda work, asks: agentic(work, loop_output_mapper=asks),
    "a question's text": lambda _, asks: ask("box", asks),
}

AROUND = {
    "at the top": lambda steps: steps,
    "below": lambda steps: [ImportStep("deep", pipeline=Pipeline(steps), inherit_context=True)],
    "in a child run": lambda steps: [ImportStep("deep", pipeline=Pipeline(steps), inherit_context=True, own_run=True)],
}
ALL = pytest.mark.parametrize("make", PLACES.values(), ids=PLACES)


@ALL
@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_it_pauses_the_run_and_is_asked_again_with_the_answer(engine, work, make, around):
    """M-042: whoever asks gets the answer; what was done before is not done again, and the run continues."""
    asks, before, after = Asks(), Work(), Work()
    steps = [Step("before", before), make(work, asks), Step("after", after)]
    run = engine.enqueue(Pipeline(around(steps), context_model=Line), "in")
    engine.drain()

    paused = engine.result(run)
    assert (paused.run_status, [each.message for each in paused.pauses]) == ("paused", ["left or right?"])
    with pytest.raises(PausedException):
        paused.raise_for_status()
    done = len(work.given)
    engine.answer(run, "left")
    engine.drain()
    if engine.result(run).run_status == "paused":  # the text of a question is what is asked next
        assert [each.message for each in engine.result(run).pauses] == ["left"]
        engine.answer(run, "yes")
        engine.drain()

    result = engine.result(run)
    assert result.run_status == "succeeded", result.error
    assert set(asks.answers) == {"left"}
    assert (len(before.given), len(after.given)) == (1, 1)
    assert len(work.given) in (done, done + 1)
    assert asks.calls == 2


@ALL
def test_a_replay_decides_the_same(engine, work, make):
    run = engine.enqueue(Pipeline([make(work, Asks())], context_model=Line), "in")
    engine.drain()
    engine.answer(run, "left")
    engine.drain()
    stores = engine.stores
    recorded = (
        asked(stores).read_recording(run),
        asked(stores).read_notices(run),
        stores.reads.read_scopes(run),
        stores.reads.read_children(run),
    )
    assert replay(*recorded).difference is None


def test_each_iteration_asks_for_itself(engine, work):
    """An answer counts where it was asked, and nowhere else."""

    def more(answer, *_):
        return answer == "enough"

    run = engine.enqueue(Pipeline([loop(work, exit_condition_callable=Asks(more))]), "in")
    for number, answer in enumerate(["more", "enough"], start=1):
        engine.drain()
        assert engine.result(run).run_status == "paused"
        assert len(work.given) == number
        engine.answer(run, answer)
    engine.drain()
    assert engine.result(run).success


def test_two_that_ask_at_one_place_get_each_its_own_answer(engine, work):
    condition, mapper = Asks(), Asks()
    box = ConditionalStep(
        "box", condition_callable=condition, branches={"left": body(work)}, branch_input_mapper=mapper
    )
    run = engine.enqueue(Pipeline([box]), "in")
    for answer in ("left", "mapped"):
        engine.drain()
        engine.answer(run, answer)
    engine.drain()
    assert (set(condition.answers), mapper.answers, work.given) == ({"left"}, ["mapped"], ["mapped"])


def test_branches_beside_it_continue(engine, work):
    """M-449: in a fan-out only the branch waits, and the join comes when it is done."""
    asks, other = Asks(), Work()
    waits = Pipeline([Step("w", work), ConditionalStep("box", condition_callable=asks, branches={"left": body(work)})])
    fan = Step.parallel("fan", {"waits": waits, "other": body(other)}, max_concurrency=1)
    run = engine.enqueue(Pipeline([fan]), "in")
    engine.drain()
    assert (engine.result(run).run_status, other.given) == ("paused", ["in"])
    engine.answer(run, "left")
    engine.drain()
    result = engine.result(run)
    assert (result.run_status, result.output) == ("succeeded", {"waits": "in", "other": "in"})


def test_where_no_one_may_be_asked_it_fails_with_the_question(engine, work):
    inner = ConditionalStep("box", condition_callable=Asks(), branches={"left": body(work)})
    alone = ImportStep("alone", pipeline=Pipeline([inner]), propagate_hitl=False)
    result = engine.run(Pipeline([alone]), "in")
    assert (result.run_status, result.error.code) == ("failed", "QUESTION_NOT_PROPAGATED")
    assert "left or right?" in result.error.message


@pytest.mark.parametrize(
    "step",
    [
        lambda asks: Step("x", echo, processors=AgentProcessors(prompt_processors=[asks])),
        lambda asks: Step("x", echo, processors=AgentProcessors(output_processors=[asks])),
        lambda asks: Step.from_mapper(asks, name="x"),
    ],
    ids=["a prompt processor", "an output processor", "a mapper as a step"],
)
def test_what_asks_inside_of_a_step_waits_at_that_step(engine, step):
    """The answer is the step's output: what asked is not called again."""
    asks, after = Asks(), Work()
    run = engine.enqueue(Pipeline([step(asks), Step("after", after)]), "in")
    engine.drain()
    assert [(each.step, each.message) for each in engine.approvals(run)] == [("x", "left or right?")]
    engine.answer(run, "left")
    engine.drain()
    assert (engine.result(run).output, after.given, asks.calls) == ("left", ["left"], 1)


def test_an_invariant_that_asks_waits_at_the_step_that_it_judges(engine):
    asks = Asks()
    run = engine.enqueue(Pipeline([Step("x", echo)], static_invariants=[asks], context_model=Line), "in")
    engine.drain()
    assert (engine.result(run).run_status, [each.step for each in engine.approvals(run)]) == ("paused", ["x"])
    assert engine.answer(run, "left").run_status == "succeeded"


def test_a_transition_that_asks_while_a_state_ends(engine, work):
    asks = Asks(lambda answer, *_: answer == "left")
    machine = StateMachineStep(
        "box",
        states={"a": body(work)},
        start_state="a",
        end_states=["end"],
        transitions=[{"from": "a", "on": "success", "to": "end", "when": asks}],
    )
    run = engine.enqueue(Pipeline([machine], context_model=Line), "in")
    engine.drain()
    assert engine.result(run).run_status == "paused"
    engine.answer(run, "left")
    engine.drain()
    assert (engine.result(run).success, len(work.given)) == (True, 1)


@pytest.mark.parametrize("make", [PLACES["a loop's condition"], PLACES["a condition"], PLACES["a merge"]])
def test_a_run_that_waits_continues_under_changed_code(engine, work, make):
    """ADR 37: the question stands at no step that could have changed, or at the one that asks again."""
    asks, after = Asks(), Work()
    box = make(work, asks)
    old = Pipeline([box, Step("after", lambda data: data)], context_model=Line, name="p")
    run = engine.enqueue(old, "in")
    engine.drain()
    engine.deploy(old, Pipeline([box, Step("last", after)], context_model=Line, name="p"))
    engine.answer(run, "left")
    engine.drain()
    result = engine.result(run)
    assert (result.run_status, len(after.given)) == ("succeeded", 1), result.error


def transition(on, when):
    """A machine whose second transition asks `when` at an ending of its first state."""
    first = HumanInTheLoopStep("ask", message_for_user="first?") if on == "pause" else Step("fails", fails, config=ONCE)
    return StateMachineStep(
        "box",
        states={"one": Pipeline([first]), "two": Pipeline([Step("work", Work())])},
        start_state="one",
        end_states=["two"],
        transitions=[{"from": "one", "on": on, "to": "two", "when": when}, {"from": "one", "to": "two"}],
    )


def raises_a_pause(*_):
    raise PausedException("left or right?")


@pytest.mark.parametrize("on", ["failure", "pause"])
def test_where_a_run_cannot_wait_a_question_fails_it_with_the_way_out(engine, on):
    """M-042, C-23: the failure is a question's, with its text, and not a bare `PAUSED`."""
    run = engine.enqueue(Pipeline([transition(on, raises_a_pause)]), "in")
    engine.drain()
    if on == "pause":
        engine.answer(run, "first")
    error = engine.result(run).error
    assert (engine.result(run).run_status, error.code, error.category) == ("failed", "QUESTION_WITHOUT_PLACE", "human")
    assert "left or right?" in error.message
    assert "ask in a step instead" in error.message
    assert engine.approvals(run) == []


@pytest.mark.parametrize("on", ["failure", "pause"])
def test_a_condition_that_would_ask_there_is_refused_before_a_run(engine, on):
    """M-042: a function that takes a person's answer, at an ending where no one can be asked."""
    with pytest.raises(PipelineError, match=f"transition 0: its `when` takes `resume_input`.*`on: {on}`"):
        engine.enqueue(Pipeline([transition(on, Asks())]), "in")
