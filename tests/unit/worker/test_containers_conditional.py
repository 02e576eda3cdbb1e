"""Conditionals, through the engine in one process: keys, mappers, what no branch has, and conditions that go wrong."""

import asyncio
import threading
from enum import Enum, StrEnum

import pytest
from container_parts import (
    QUICK,
    Spy,
    WatchedEngine,
    assert_attributed,
    at,
    bare,
    fails,
    more,
    note,
    of,
    raises,
    seen,
    step,
)

from flujo_client.errors import PipelineAbortSignal
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step

pytestmark = pytest.mark.engine(kind=WatchedEngine)


@pytest.fixture
def hurried():
    with WatchedEngine(QUICK) as engine:
        yield engine


def choose(condition, branches=None, default=None, **options):
    branches = branches or {"yes": step("x", more), "no": step("y")}
    return Step.branch_on("choose", condition, branches, default, **options)


def always(key):
    return lambda output, context: key


@pytest.mark.parametrize(
    ("said", "keys", "taken"),
    [
        ("yes", ["yes", "no"], "yes"),
        (True, [True, False], "true"),
        (False, [True, False], "false"),
        (True, ["true", "false"], "true"),
        (False, ["true", "false"], "false"),
        (1, [0, 1, 2], "1"),
        (0, [0, 1, 2], "0"),
        (-3, [-3], "-3"),
        ("1", ["1", "2"], "1"),
    ],
)
def test_the_branch_with_the_key_runs(engine, said, keys, taken):
    """SYS-16, requirements §2.3: a str, a bool, an int; booleans mean "true" and "false" too."""
    branches = {key: step("tell", lambda data, key=key: repr(key)) for key in keys}
    result = engine.run(bare(choose(always(said), branches)), "in")
    found = at(result, "choose")
    meant = next(key for key in keys if str(key).lower() == taken)
    assert result.output == repr(meant)
    assert found.metadata_ == {"executed_branch_key": said, "resolved_branch_key": taken}
    assert [each.name for each in found.step_history] == [taken]


class Color(Enum):
    RED = "red"


class Mixed(str, Enum):  # noqa: UP042 - many are still written so
    RED = "red"


class Spoken(StrEnum):
    RED = "red"


@pytest.mark.parametrize("said", ["red", *Color, *Mixed, *Spoken])
@pytest.mark.parametrize("key", ["red", *Color, *Mixed, *Spoken])
def test_an_enums_member_means_its_value(engine, said, key):
    """On both sides, whatever the enum's kind; the metadata holds the value."""
    result = engine.run(bare(choose(always(said), {key: step("x", more)})), 1)
    assert (result.output, at(result, "choose").metadata_["executed_branch_key"]) == (2, "red")
    assert type(at(result, "choose").metadata_["executed_branch_key"]) is str


@pytest.mark.parametrize(
    ("said", "keys"),
    [(1, [True]), (True, [1]), ("1", [1]), (1, ["1"]), ("true", [True]), ("other", ["yes"])],
)
def test_a_key_that_no_branch_has_is_a_failure_that_names_it(engine, said, keys):
    """Requirements §2.3: `NO_BRANCH`, with what was said, where, and the branches there are."""
    result = engine.run(bare(choose(always(said), {key: step("x") for key in keys}), step("after")), "in")
    assert_attributed(engine, result, "choose", "ExecutionError", f"the condition of 'choose' answered {said!r}")
    assert result.error.code == "NO_BRANCH"
    assert str(keys[0]).lower() in result.error.message


@pytest.mark.parametrize("said", ["other", None, 3.5, [], {"a": 1}])
def test_the_default_runs_for_everything_else(engine, said):
    result = engine.run(bare(choose(always(said), default=step("z", lambda data: "default"))), "in")
    assert result.output == "default"
    assert at(result, "choose").metadata_["resolved_branch_key"] == "default"


def test_what_is_no_key_at_all_is_named_by_its_type(engine):
    result = engine.run(bare(choose(always({"secret": 1}))), "in")
    assert_attributed(engine, result, "choose", "ExecutionError", "a dict")
    assert "secret" not in result.error.message


def test_the_condition_sees_output_and_context(engine):
    condition = Spy(lambda output, context: "yes")
    engine.run(of(step("write", seen), choose(condition)), 5)
    [(output, context)] = condition.asked
    assert (output, context.seen) == (5, [5])


def test_mappers_stand_around_the_branch(engine):
    """Requirements §2.3: the output mapper is given the key as it was said."""
    before = Spy(lambda output, context: output * 10)
    after = Spy(lambda output, key, context: (output, key, context.title))
    branches = {True: step("x", lambda data, context: setattr(context, "title", "t") or data + 1)}
    made = choose(always(True), branches, branch_input_mapper=before, branch_output_mapper=after)
    assert engine.run(of(made), 1).output == (11, True, "t")
    assert (len(before.asked), len(after.asked)) == (1, 1)


def test_the_output_mapper_may_take_the_conditionals_own_input(engine):
    """By the name of its parameter, as a loop's mappers; None is an input, too."""

    def both(output, key, context, *, original_input):
        return [original_input, output]

    made = choose(always("yes"), {"yes": step("x", lambda data: "out")}, branch_output_mapper=both)
    assert [engine.run(bare(made), value).output for value in ("in", None)] == [["in", "out"], [None, "out"]]


async def slowly(output, context):
    await asyncio.sleep(0)
    return "yes"


def test_a_condition_may_be_async(engine):
    assert engine.run(bare(choose(slowly)), 1).output == 2


def test_what_a_branch_writes_is_kept(engine):
    """M-414, M-280."""
    result = engine.run(of(choose(always("yes"), {"yes": step("x", note(title="yes"))})), "in")
    assert result.final_pipeline_context.title == "yes"


def test_a_failing_branch_fails_the_conditional_and_merges_nothing(engine):
    branches = {"yes": Pipeline([step("write", note(title="never")), step("no", fails)])}
    result = engine.run(of(choose(always("yes"), branches)), "in")
    assert_attributed(engine, result, "branch 'yes' failed", "NonRetryableError", "no in")
    assert result.final_pipeline_context.title == ""


@pytest.mark.parametrize(
    ("options", "role"),
    [
        ({"condition": raises}, "condition"),
        ({"branch_input_mapper": raises}, "branch_input"),
        ({"branch_output_mapper": raises}, "branch_output"),
    ],
)
def test_a_function_that_raises_fails_the_conditional(engine, options, role):
    made = choose(options.pop("condition", always("yes")), **options)
    result = engine.run(bare(made, step("after")), 1)
    assert_attributed(engine, result, f"{role} of 'choose' failed with KeyError", "KeyError", "a bug")
    assert [each.name for each in result.step_history] == ["choose"]


async def sleeps(output, context):
    await asyncio.sleep(3600)


def test_a_condition_that_never_returns_fails_the_conditional(hurried):
    """Issue 3: within `function_timeout_s`, which is told."""
    result = hurried.run(bare(choose(sleeps)), 1)
    assert_attributed(hurried, result, "condition of 'choose'", "TimeoutError", "no answer within 0.5 s")


def test_a_condition_that_blocks_its_thread_fails_the_conditional(hurried):
    free = threading.Event()
    result = hurried.run(bare(choose(lambda *_: free.wait(60))), 1)
    free.set()
    assert_attributed(hurried, result, "condition of 'choose'", "TimeoutError", "no answer within 0.5 s")
    assert hurried.run(bare(choose(always("yes"))), 1).output == 2


def test_a_mapper_whose_answer_cannot_travel_is_named(engine):
    made = choose(always("yes"), branch_input_mapper=lambda *_: {"handle": threading.Lock()})
    result = engine.run(bare(made), 1)
    assert_attributed(engine, result, "branch_input of 'choose'", "SerializationError", "handle")
    assert result.error.code == "SERIALIZATION"


def test_a_condition_may_abort(engine):
    """C-23."""

    def aborts(*_):
        raise PipelineAbortSignal("enough")

    assert engine.run(bare(choose(aborts)), 1).error.code == "PIPELINE_ABORT"


def test_a_path_in_a_nested_place_is_named_whole(engine):
    inner = choose(always("other"))
    result = engine.run(bare(Step.parallel("fan", {"b": inner})), 1)
    assert "the condition of 'fan/b/choose'" in result.error.message
    assert at(result, "fan").feedback.startswith("branch 'b' failed: ")
