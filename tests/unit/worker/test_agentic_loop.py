"""Agentic loops, through the engine in one process: commands, the log, what a planner says wrongly, agents that fail, people, budgets."""

from typing import Any

import pytest
from agentic_parts import Planner, ask, finish, loop, looped, run, turns, upper
from container_parts import ONCE, TWICE, Flaky, Notes, WatchedEngine, assert_attributed, at, fails, of, paid, step
from pydantic import BaseModel

from flujo_client import (
    AgenticLoopStep,
    AskHumanCommand,
    DynamicParallelRouterStep,
    ExecutedCommandLog,
    FinishCommand,
    ImportStep,
    Pipeline,
    PluginOutcome,
    RunAgentCommand,
    Step,
    StepConfig,
    UsageLimits,
    make_agentic_loop_pipeline,
)
from flujo_client.errors import PipelineError

pytestmark = pytest.mark.engine(kind=WatchedEngine)

FORTY_FIVE = UsageLimits(total_tokens_limit=45)


def test_agents_work_until_the_planner_finishes(engine):
    """Requirements §2.5: the three commands; the output is the final answer."""
    planner = Planner(run("upper", "a"), run("upper", "b"), finish({"found": "AB"}))
    result = engine.run(looped(planner), "goal")
    assert (result.run_status, result.output) == ("succeeded", {"found": "AB"})
    assert turns(result) == [(1, "run_agent", "A"), (2, "run_agent", "B"), (3, "finish", {"found": "AB"})]
    assert at(result, "loop").metadata_ == {"iterations": 3, "exit_reason": "condition"}


def test_a_planner_is_told_the_goal_the_agents_and_the_turns_so_far(engine):
    planner = Planner(run("upper", "a"), finish())
    engine.run(looped(planner, max_loops=7), {"topic": "bees"})
    first = {"goal": {"topic": "bees"}, "agents": ["upper"], "turn": 1, "max_turns": 7, "command_log": []}
    done = [{"turn": 1, "command": run("upper", "a"), "result": "A"}]
    assert planner.told == [first, {**first, "turn": 2, "command_log": done}]


def test_the_context_holds_every_turn(engine):
    """Requirements §2.4: `command_log`, of `ExecutedCommandLog`."""
    result = engine.run(looped(Planner(run("upper", "a"), finish(3))), "goal")
    assert result.final_pipeline_context.command_log == [
        ExecutedCommandLog(
            turn=1, command=RunAgentCommand(agent_name="upper", input_data="a"), result="A", loop="loop"
        ),
        ExecutedCommandLog(turn=2, command=FinishCommand(final_answer=3), result=3, loop="loop"),
    ]


def test_each_turn_call_and_record_is_an_attempt_of_its_own(engine):
    result = engine.run(looped(Planner(run("upper"), finish())), "goal")
    keys = [(each.address, each.step) for each in engine.history(result.run_id) if each.kind == "step"]
    first = [("loop#1", "planner"), ("loop#1/act/upper", "upper"), ("loop#1", "record")]
    assert keys == [*first, ("loop#2", "planner"), ("loop#2/act/finish", "finish"), ("loop#2", "record")]


@pytest.mark.parametrize(
    "said",
    [
        FinishCommand(final_answer=7),
        {"type": "finish", "final_answer": 7, "question": None, "thoughts": "enough"},
        '{"type": "finish", "final_answer": 7}',
        'That is it.\n```json\n{"type": "finish", "final_answer": 7,}\n```',
    ],
    ids=["command", "mapping", "JSON", "text"],
)
def test_a_command_may_be_said_in_any_form(engine, said):
    """M-049: a model's text is read by AROS."""
    assert engine.run(looped(Planner(said)), "goal").output == 7


def test_an_agent_there_is_not_is_told_with_the_nearest(engine):
    planner = Planner(run("uper"), finish())
    result = engine.run(looped(planner, {"upper": upper, "lower": str.lower}), "goal")
    told = {"error": "there is no agent 'uper'", "agents": ["upper", "lower"], "nearest": "upper"}
    assert (result.output, planner.told[1]["command_log"][0]["result"]) == ("done", told)


@pytest.mark.parametrize("name", ["finish", "ask_human", "unknown_agent", "default", "true"])
def test_an_agents_name_never_leads_to_a_path_of_the_loops_own(engine, name):
    result = engine.run(looped(Planner(run(name), finish())), "goal")
    assert turns(result)[0] == (1, "run_agent", {"error": f"there is no agent '{name}'", "agents": ["upper"]})


def test_an_output_mapper_is_given_the_final_answer(engine):
    pipeline = looped(Planner(finish("in")), loop_output_mapper=lambda answer, context: f"{answer}!")
    assert engine.run(pipeline, "goal").output == "in!"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"type": "finish"}, "at /final_answer: Field required"),
        ({"type": "run_agent", "agent_name": "", "input_data": 1}, "at /agent_name: String should have at least 1"),
        ({"type": "ask_human", "question": " "}, "at /question: String should match pattern"),
        (ask("q" * 100_001), "at /question: String should have at most 100000 characters"),
        (None, "at (root): Input should be"),
        (42, "at (root): Input should be"),
        (
            {"type": "finnish"},
            'at /type: expected options ["run_agent", "ask_human", "finish"], found string "finnish"',
        ),
        ("I do not know.", "no JSON value found in the text"),
    ],
)
def test_what_is_no_command_is_told_to_the_next_attempt(engine, said, told):
    """C-02, M-051: a shape failure, which is tried again with what was wrong."""
    planner = Planner(said, finish())
    result = engine.run(looped(planner), "goal")
    assert (result.output, planner.guidance[0]) == ("done", None)
    assert told in planner.guidance[1]
    assert turns(result) == [(1, "finish", "done")]


def test_a_planner_that_says_no_command_fails_the_loop(engine):
    result = engine.run(looped(Planner({"type": "finish"})), "goal")
    where = "Loop body failed in iteration 1 of 'loop' at step 'planner'"
    assert_attributed(engine, result, where, "AgentIOValidationError", "it is not a command: at /final_answer")
    assert len(engine.history(result.run_id)) == 3


def test_a_planners_own_processors_and_retries_count(engine):
    planner = Step("boss", Planner("no", "no", "no", finish(1)), config=TWICE.model_copy(update={"max_retries": 3}))
    result = engine.run(looped(planner), "goal")
    assert result.output == 1
    assert [each.step for each in engine.history(result.run_id) if each.kind == "step"][:4] == ["boss"] * 4


def test_a_planners_fallback_says_commands_too(engine):
    planner = step("boss", fails, fallback_step=step("deputy", Planner('{"type": "finish", "final_answer": 2}')))
    assert engine.run(looped(planner), "goal").output == 2


class Overrule:
    """A plugin that puts another command in the place of the planner's."""

    def validate(self, data: Any) -> PluginOutcome:
        return PluginOutcome(success=True, new_solution=run("upper", "overruled") if data.type == "ask_human" else data)


def test_a_planners_plugins_may_say_another_command(engine):
    planner = step("boss", Planner(ask(), finish()), plugins=[Overrule()])
    assert turns(engine.run(looped(planner), "goal")) == [(1, "run_agent", "OVERRULED"), (2, "finish", "done")]


@pytest.mark.parametrize("mode", ["sync", "background"])
def test_a_loop_may_fall_back_and_run_in_the_background(engine, mode):
    made = loop(Planner(run("upper")), {"upper": fails}, config=StepConfig(execution_mode=mode))
    run_id = engine.enqueue(of(made.fallback(step("else", lambda goal: f"no {goal}"))), "goal")
    engine.drain()
    ends = [engine.result(each).output for each in (run_id, *(child.id for child in engine.children(run_id)))]
    assert ends[-1] == "no goal"
    assert len(ends) == (1 if mode == "sync" else 2)


def test_an_agent_that_fails_fails_the_loop(engine):
    result = engine.run(looped(Planner(run("upper")), {"upper": step("upper", fails)}), "goal")
    assert_attributed(engine, result, "iteration 1 of 'loop' at step 'act'", "NonRetryableError", "no x")


def test_a_planner_may_be_told_that_an_agent_has_failed(engine):
    """It was tried again before, as any step is; what it wrote is not merged."""
    flaky = Flaky(9)
    planner = Planner(run("flaky"), finish("without"))
    registry = {"flaky": Step("flaky", flaky, config=TWICE)}
    result = engine.run(looped(planner, registry, on_agent_failure="tell"), "goal")
    assert (result.output, flaky.calls) == ("without", 2)
    assert turns(result)[0][2] == {"error": "Agent execution failed with ValueError: try 2"}


def test_a_planner_may_be_told_that_an_agents_budget_is_spent(engine):
    """C-10, SYS-18: an agent has its own budget as any step has, and what is left of the run's is the planner's."""
    planner = Planner(run("paid"), run("paid"), finish("cheaply"))
    limited = Step("paid", paid, config=StepConfig(expected_tokens=15), usage_limits=UsageLimits(total_tokens_limit=20))
    result = engine.run(looped(planner, {"paid": limited}, on_agent_failure="tell"), "goal")
    assert (result.output, turns(result)[0][2], result.total_tokens) == ("cheaply", "x", 15)
    assert "oken limit" in turns(result)[1][2]["error"]


def test_the_planners_calls_count_in_the_loops_budget(engine):
    """SYS-18: `usage_limits` of the loop are over all that runs in it."""
    config = StepConfig(expected_tokens=15)
    registry = {"paid": Step("paid", paid, config=config)}
    boss = Step("boss", lambda brief: paid(run("paid")), config=config)
    result = engine.run(looped(boss, registry, on_agent_failure="tell", usage_limits=FORTY_FIVE), "goal")
    assert (result.run_status, result.error.type_name) == ("failed", "UsageLimitExceededError")
    assert (result.total_tokens, len(engine.history(result.run_id))) == (45, 8)


def test_an_agent_may_be_a_step_or_a_pipeline(engine):
    registry = {"twice": Pipeline([step("one", upper), step("two", lambda text: text * 2)]), "once": step("any", upper)}
    result = engine.run(looped(Planner(run("twice", "a"), run("once", "b"), finish()), registry), "goal")
    assert [result for _, _, result in turns(result)] == ["AA", "B", "done"]


def test_agents_share_the_context(engine):
    def count(data, *, context):
        context.count += data

    result = engine.run(looped(Planner(run("count", 2), run("count", 3), finish()), {"count": count}), "goal")
    assert result.final_pipeline_context.count == 5


def test_turns_that_run_out_are_told_as_a_loops_are(engine):
    """C-12: a success with the last result, and the reason in the metadata."""
    result = engine.run(looped(Planner(run("upper", "a")), max_loops=3), "goal")
    assert (result.run_status, result.output) == ("succeeded", "A")
    assert at(result, "loop").metadata_ == {"iterations": 3, "exit_reason": "max_loops"}


def test_turns_that_run_out_may_be_a_failure(engine):
    result = engine.run(looped(Planner(run("upper", "a")), max_loops=2, fails_at_max=True), "goal")
    assert_attributed(engine, result, "'loop'", "ExecutionError", "reached max_loops (2)")


def test_ten_turns_are_the_most_that_are_taken_unasked(engine):
    planner = Planner(run("upper", "a"))
    engine.run(make_agentic_loop_pipeline(planner, {"upper": upper}), "goal")
    assert len(planner.told) == 10


def test_a_question_waits_for_its_answer_and_holds_nothing(engine):
    """SYS-17, M-449: no attempt is ready or running meanwhile; the answer is the turn's result."""
    planner = Planner(run("upper", "a"), ask("May I?"), finish("ok"))
    run_id = engine.enqueue(looped(planner), "goal")
    engine.drain()
    assert [each.message for each in engine.approvals(run_id)] == ["May I?"]
    assert {each.status for each in engine.history(run_id)} == {"succeeded", "paused"}
    assert len(planner.told) == 2
    result = engine.answer(run_id, {"yes": True})
    assert (result.output, turns(result)[1]) == ("ok", (2, "ask_human", {"yes": True}))
    assert planner.told[2]["command_log"][1]["command"] == AskHumanCommand(question="May I?").model_dump()


def test_a_question_that_no_one_answers_is_told_to_the_planner(engine):
    """SYS-17: after `ask_expires_s` the loop continues, and the planner decides what that means."""
    planner = Planner(ask("May I?"), finish("without leave"))
    run_id = engine.enqueue(looped(planner, ask_expires_s=60), "goal")
    engine.drain()
    engine.pass_time(59)
    assert engine.result(run_id).run_status == "paused"
    engine.pass_time(1)
    told = {"error": "no one answered within 60 s"}
    assert (engine.result(run_id).output, turns(engine.result(run_id))[0]) == ("without leave", (1, "ask_human", told))
    assert planner.told[1]["command_log"][0]["result"] == told


@pytest.mark.parametrize("seconds", [0, -1, "soon"])
def test_a_time_to_answer_is_above_0(engine, seconds):
    with pytest.raises(PipelineError, match="expires_s"):
        engine.run(looped(Planner(finish()), ask_expires_s=seconds), "goal")


def test_a_question_may_be_the_last_turn(engine):
    run_id = engine.enqueue(looped(Planner(ask()), max_loops=1), "goal")
    engine.drain()
    assert engine.answer(run_id, "an answer").output == "an answer"


def test_turns_that_grow_too_large_fail_the_loop_with_the_figures(engine):
    result = engine.run(looped(Planner(run("big")), {"big": lambda _: "x" * 6_000_000}), "goal")
    assert_attributed(engine, result, "at step 'record'", "SnapshotTooLarge", "can be sent")


def test_a_second_loop_is_told_its_own_turns_alone(engine):
    second = Planner(run("upper", "c"), finish())
    result = engine.run(of(loop(Planner(run("upper", "a"), finish("b")), name="one"), loop(second, name="two")), "goal")
    assert [each["goal"] for each in second.told] == ["b", "b"]
    assert [[each["result"] for each in brief["command_log"]] for brief in second.told] == [[], ["C"]]
    assert (turns(result, "one")[-1][2], turns(result, "two")[-1][2]) == ("b", "done")


def test_a_loop_that_runs_again_begins_again(engine):
    planner = Planner(run("upper", "a"), finish("b"), run("upper", "c"), finish("d"))
    again = Step.loop_until("again", loop(planner), lambda output, context: output == "d")
    engine.run(of(again), "goal")
    assert [len(brief["command_log"]) for brief in planner.told] == [0, 1, 0, 1]


def test_a_loop_inside_another_of_its_name_keeps_apart(engine):
    inner = loop(Planner(run("upper", "x"), finish("X!")))
    outer = Planner(run("deep", "sub-goal"), run("deep", "sub-goal"), finish())
    result = engine.run(looped(outer, {"deep": inner}), "goal")
    assert [[each["result"] for each in brief["command_log"]] for brief in outer.told] == [[], ["X!"], ["X!", "X!"]]
    assert [each.loop for each in result.final_pipeline_context.command_log][:3] == [
        *["loop#1/act/deep/loop"] * 2,
        "loop",
    ]


@pytest.mark.parametrize("own_run", [False, True])
@pytest.mark.parametrize("inherit_context", [False, True])
def test_an_agent_that_is_an_import_takes_no_turn_away(engine, own_run, inherit_context):
    """The same with a loop in it, of the same name; with its own context it keeps its turns, too."""
    nested = Pipeline([loop(Planner(run("upper", "x"), finish("X!")))], name="child", context_model=Notes)
    deep = ImportStep("deep", pipeline=nested, inherit_context=inherit_context, own_run=own_run)
    outer = Planner(run("upper", "a"), run("deep"), run("upper", "b"), finish())
    result = engine.run(looped(outer, {"deep": deep, "upper": upper}), "goal")
    assert [each["result"] for each in outer.told[3]["command_log"]] == ["A", "X!", "B"]
    assert [each[2] for each in turns(result)] == ["A", "X!", "B", "done"]
    assert len(result.final_pipeline_context.command_log) == (6 if inherit_context else 4)


def test_loops_side_by_side_append_in_declared_order(engine):
    """C-46."""
    branches = {name: loop(Planner(run("upper", name), finish()), name=name) for name in ("left", "right")}
    result = engine.run(of(Step.parallel("fan", branches)), "goal")
    log = [(each.loop, each.result) for each in result.final_pipeline_context.command_log]
    left, right = [("fan/left/left", each) for each in ("LEFT", "done")], [("fan/right/right", "RIGHT")]
    assert log == [*left, *right, ("fan/right/right", "done")]


def test_turns_of_before_are_kept_and_not_told(engine):
    planner = Planner(run("upper", "a"), finish())
    before = {"turn": 1, "command": finish("old"), "result": "old"}
    result = engine.run(looped(planner), "goal", context=Notes(command_log=[before]))
    assert (len(planner.told[1]["command_log"]), len(result.final_pipeline_context.command_log)) == (1, 3)


def test_turns_of_an_earlier_run_whose_context_is_handed_on_are_not_told(engine):
    """They have the same address as this run's own."""
    earlier = engine.run(looped(Planner(run("upper", "a"), finish("b"))), "goal").final_pipeline_context
    planner = Planner(run("upper", "c"), finish())
    result = engine.run(looped(planner), "another", context=earlier)
    assert [[each["result"] for each in brief["command_log"]] for brief in planner.told] == [[], ["C"]]
    assert [result for _, _, result in turns(result)] == ["A", "b", "C", "done"]


class TwiceDelivered(WatchedEngine):
    """Every message comes twice."""

    def _send(self, envelopes: Any, fan_out: Any = None) -> None:
        super()._send(envelopes, fan_out)
        self.bus.extend([self.bus[-1]] if self.bus else [])


def test_a_turn_is_written_down_once_however_often_its_messages_come():
    with TwiceDelivered() as engine:
        result = engine.run(looped(Planner(run("upper", "a"), finish())), "goal")
    assert turns(result) == [(1, "run_agent", "A"), (2, "finish", "done")]


class Bare(BaseModel):
    """A context without a log."""

    title: str = ""


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (looped(Planner(), {"finish": upper}), "step 'loop': registry: 'finish' is reserved by the loop"),
        (looped(Planner(), {"a/b": upper}), "step 'loop': registry: agent 'a/b': a name must have 1 to"),
        (looped(Planner(), {1: upper}), "step 'loop': registry: 1 is a int; an agent's name must be a text"),
        (looped(Planner(), [upper]), "step 'loop': registry must be a mapping of agents"),
        (of(AgenticLoopStep("loop", planner=Planner(), registry={})), "registry must be a mapping of agents"),
        (looped(Planner(), {"upper": 5}), "step 'loop/body/act/upper/upper': its agent, a int, is not callable"),
        (looped(Planner(), max_loops=0), "step 'loop': max_loops must be a whole number from 1"),
        (looped(Planner(), on_agent_failure="skip"), "on_agent_failure 'skip' must be one of abort, tell"),
        (looped(of(step("a"))), "planner, a Pipeline, must be an agent or a plain step"),
        (
            looped(step("a", config=ONCE.model_copy(update={"execution_mode": "background"}))),
            "planner, a Step, must be an agent or a plain step in the foreground",
        ),
        (
            looped(DynamicParallelRouterStep("r", router_agent=upper, branches={"b": step("b")})),
            "planner, a DynamicParallelRouterStep, must be",
        ),
        (looped(step("a", fallback_step=of(step("b")).as_step("c"))), "planner, a Step, must be"),
        (Pipeline([loop(Planner())]), "step 'loop': the log of its turns needs a context"),
        (Pipeline([loop(Planner())], context_model=Bare), "the log of its turns 'command_log' is not a field of Bare"),
        (of(Step.cached(loop(Planner()))), "it asks a person and is inside a cached step"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(engine, made, said):
    with pytest.raises(PipelineError) as refused:
        engine.run(made, "goal")
    assert said in str(refused.value)


def test_other_names_of_its_options(engine):
    """C-17."""
    made = Step.agentic_loop("l", Planner(finish()), {"upper": upper}, max_iterations=2)
    other = AgenticLoopStep("l", planner_agent=made.planner, agent_registry=made.registry, max_loops=2)
    assert (other.planner, other.registry, other.max_loops) == (made.planner_agent, made.agent_registry, 2)
