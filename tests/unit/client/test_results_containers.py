"""What containers give back: one uniform StepResult each, with its children's inside (M-283, M-444, M-447, C-11)."""

from dataclasses import replace
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import EXAMPLES, KINDS, C, Recorder, S, fault, pipelines, run

from flujo_client.contract.read import read_result, references
from flujo_client.contract.results import StepResult, track_parallel_costs
from flujo_client.serial import Resolver
from tests.support.builders import packed


def read(recorder, of=None, **rest):
    known = {"resolve": Resolver(["*"]), "fetch": dict.fromkeys, **rest}
    return read_result(of or run(), recorder.attempts, recorder.scopes, **known).step_history


def history(*nodes, tick_s=1.0):
    return read(Recorder(tick_s=tick_s).play(*nodes))


def names(results):
    """Names alone, as a tree."""
    return [(each.name, names(each.step_history)) if each.step_history else each.name for each in results]


def walk(results):
    for each in results:
        yield each
        yield from walk(each.step_history)


@pytest.mark.parametrize("kind", KINDS)
def test_a_container_is_told_by_the_same_rules_whatever_its_kind(kind):
    """M-283."""
    [_, box, _] = history(S("a"), C("box", kind, [[S("x"), S("y")]], names=("one",), metadata={"k": 1}), S("b"))
    assert names([box]) == [("box", [("one", ["x", "y"])])]
    assert (box.output, box.success, box.attempts, box.feedback) == ("box gave", True, 1, None)
    assert box.metadata_ == {"k": 1} | ({"selection": ["one"]} if kind == "router" else {})
    [one] = box.step_history
    assert (one.output, one.success, one.token_counts, one.cost_usd) == ("one gave", True, 20, 0.5)
    assert box.token_counts == 20 + 10 * (kind == "router")


def test_a_loop_counts_its_iterations():
    """M-447."""
    told = {"iterations": 3, "exit_reason": "condition", "feedback": "condition met after 3"}
    [loop] = history(C("loop", "loop", [[S("x")]] * 3, metadata=told))
    assert (loop.attempts, loop.metadata_["iterations"], loop.feedback) == (3, 3, "condition met after 3")
    assert [each.name for each in loop.step_history] == ["loop#1", "loop#2", "loop#3"]
    assert loop.latency_s == 3.0


def test_more_than_nine_iterations_come_in_their_order():
    """An address sorts `#10` before `#2`; a place does not (M-447)."""
    [loop] = history(C("loop", "loop", [[S("x")]] * 12))
    assert [each.name for each in loop.step_history] == [f"loop#{n}" for n in range(1, 13)]


def test_a_failed_branch_that_is_ignored_is_represented():
    """M-444."""
    [box] = history(C("box", "parallel", [[S("x")], [S("y", ok=False)], [S("z")]], ignores=True))
    assert [each.success for each in box.step_history] == [True, False, True]
    assert (box.success, box.step_history[1].feedback) == (True, "in c1: y broke")


def test_a_router_has_what_its_agent_did():
    """Its tries, spending and metadata are the router's; its own row is not a step next to it (M-283)."""
    shown = history(C("pick", "router", [[S("x")]], names=("one",)))
    assert names(shown) == [("pick", [("one", ["x"])])]
    assert (shown[0].token_counts, shown[0].cost_usd, shown[0].latency_s) == (20, 0.5, 1.0 + 2.0)
    assert shown[0].metadata_ == {"selection": ["one"]}


def test_a_router_whose_agent_fails_is_a_failed_step():
    """No branch was opened, so nothing is in it (M-283)."""
    recorder = Recorder()
    recorder.attempt("", "pick", 1, status="failed", fault=fault("no idea"))
    [pick] = read(recorder)
    assert (pick.name, pick.success, pick.feedback, pick.step_history) == ("pick", False, "no idea", [])


def test_work_that_is_no_step_is_no_history():
    """Start and join rows move containers; users see neither (M-444)."""
    recorder = Recorder().play(C("outer", "nested", [[C("box", "parallel", [[S("x")], [S("y")]])]], names=("body",)))
    assert {row.kind for row in recorder.attempts} == {"step", "start", "join"}
    assert names(read(recorder)) == [("outer", [("body", [("box", [("c0", ["x"]), ("c1", ["y"])])])])]


def test_nodes_come_in_the_order_they_ran():
    """Steps and containers alike (M-444)."""
    nodes = [S("z"), C("y", "loop", [[S("q"), C("p", "parallel")]]), S("b"), C("a", "map"), C("w", "map"), S("n")]
    assert [each.name for each in history(*nodes)] == ["z", "y", "b", "a", "w", "n"]


def test_nodes_come_in_order_where_time_stands_still():
    """The engine in memory has a clock that does not move (M-444)."""
    nodes = [S("z"), C("y", "parallel", [[S("q")], [C("p", "loop", [[S("o")]])]]), S("b"), C("pick", "router"), S("n")]
    assert [each.name for each in history(*nodes, tick_s=0)] == ["z", "y", "b", "pick", "n"]


def test_a_fan_out_counts_the_branches_that_succeeded_and_tells_the_rest():
    """C-11."""
    branches = [[S("x")], [S("y", tries=3, ok=False)], [S("z")]]
    [box] = history(C("box", "parallel", branches, ignores=True))
    assert (box.cost_usd, box.token_counts) == (0.5, 20)
    assert (box.metadata_["failed_branch_cost_usd"], box.metadata_["failed_branch_tokens"]) == (0.75, 30)


def test_a_map_that_runs_side_by_side_is_a_fan_out():
    """C-11 holds for it as for a parallel; one by one, all counts."""
    items = [[S("x")], [S("y", ok=False)]]
    [together] = history(C("box", "map", items, ignores=True, is_parallel=True))
    [one_by_one] = history(C("box", "map", items, ignores=True))
    assert (together.token_counts, together.metadata_["failed_branch_tokens"]) == (10, 10)
    assert (one_by_one.token_counts, one_by_one.metadata_) == (20, {})


def test_nested_fan_outs_do_not_count_twice():
    """M-432."""
    inner = C("inner", "parallel", [[S("x")], [S("y")]])
    [outer] = history(C("outer", "parallel", [[inner], [S("z")]]))
    assert (outer.token_counts, outer.cost_usd) == (30, 0.75)


@pytest.mark.parametrize("kind", [dict, list])
def test_parallel_costs_are_those_of_the_branches_that_succeeded(kind):
    """M-432: a mapping or a sequence of results."""
    good, bad = StepResult(name="a", cost_usd=0.5, token_counts=5), StepResult(name="b", success=False, cost_usd=9.0)
    given_ = {"a": good, "b": bad} if kind is dict else [good, bad]
    assert track_parallel_costs(given_) == (0.5, 5)
    assert track_parallel_costs(kind()) == (0.0, 0)


def test_totals_are_the_runs_whatever_its_history_shows():
    """U-14."""
    recorder = Recorder().play(C("box", "parallel", [[S("x")], [S("y", ok=False)]], ignores=True))
    got = read_result(
        run(tokens=20, cost_usd=0.5), recorder.attempts, recorder.scopes, resolve=Resolver([]), fetch=dict.fromkeys
    )
    assert (got.total_tokens, got.total_cost_usd, got.step_history[0].token_counts) == (20, 0.5, 10)


def test_a_failure_is_told_at_every_level():
    """M-025: the path to it, and its own words."""
    [box] = history(C("box", "loop", [[S("x")], [S("y", ok=False)]]))
    assert (box.success, box.output, box.attempts) == (False, None, 2)
    assert [each.feedback for each in walk([box])] == [
        "in box: in box#2: y broke",
        None,
        None,
        "in box#2: y broke",
        "y broke",
    ]


def opened(recorder, *addresses):
    """As if these scopes had never been closed."""
    recorder.scopes = [
        replace(row, status="open", closed_at=None, fault=None, output=packed("went in"))
        if row.address in addresses
        else row
        for row in recorder.scopes
    ]
    return recorder


def test_a_container_of_a_live_run_is_no_history_until_it_closes():
    """As a step that has not ended (M-444)."""
    recorder = opened(Recorder().play(S("a"), C("box", "loop", [[S("x")], [S("y")]])), "box", "box#2")
    assert names(read(recorder, run("running"))) == ["a"]


def test_a_container_that_a_runs_end_left_open_has_failed_with_it():
    """What was done in it is shown (M-444)."""
    recorder = opened(Recorder().play(C("box", "loop", [[S("x")], [S("y")]])), "box", "box#2")
    [box] = read(recorder, run("expired", reason="the deadline passed", ended_at=recorder.now))
    assert names([box]) == [("box", [("box#1", ["x"]), ("box#2", ["y"])])]
    assert (box.success, box.output, box.feedback) == (False, None, "the deadline passed")
    assert (box.latency_s, box.token_counts) == (2.0, 20)


def test_a_cancelled_branch_says_so():
    """M-444: represented, not dropped, also when it never began."""
    recorder = Recorder().play(C("box", "parallel", [[S("x")], []], ignores=True))
    recorder.scopes[-1] = replace(recorder.scopes[-1], status="cancelled", fault=None)
    [box] = read(recorder)
    assert [(each.success, each.feedback) for each in box.step_history] == [(True, None), (False, "cancelled")]


def test_a_cancelled_branch_gives_the_words_of_what_was_cancelled_in_it():
    """Not those of what had gone well before (M-025)."""
    loop = C("loop", "loop", [[S("x")]], metadata={"feedback": "condition met after 1"})
    recorder = Recorder().play(C("box", "parallel", [[loop, S("y")]], ignores=True))
    recorder.attempts = [
        replace(row, status="cancelled", reason="aborted", output=None) if row.step == "y" else row
        for row in recorder.attempts
    ]
    recorder.scopes = [replace(row, status="cancelled") if row.address == "box/c0" else row for row in recorder.scopes]
    [box] = read(recorder)
    assert [each.feedback for each in box.step_history] == ["aborted"]


def test_a_container_that_only_has_a_start_row_is_no_history():
    """It has not begun (M-444)."""
    recorder = Recorder()
    recorder.attempt("", "box", kind="start", status="queued")
    assert read(recorder, run("running")) == []


def test_what_a_scope_only_points_at_is_fetched():
    """Inputs of what failed or is open are not: no one is shown them (M-027)."""
    recorder = Recorder().play(C("box", "loop", [[S("x")], [S("y", ok=False)]]))
    large = {row.address: packed(f"long {row.address}") for row in recorder.scopes}
    recorder.scopes = [replace(row, output=large[row.address].reference()) for row in recorder.scopes]
    assert references(run(), recorder.attempts, recorder.scopes) == {large["box#1"].digest}
    [box] = read(recorder, fetch=lambda digests: dict.fromkeys(digests, large["box#1"]))
    assert box.step_history[0].output == "long box#1"


def shape(nodes):
    """The names a shape should be shown by: a failed node stops its sequence."""
    shown = []
    for node in nodes:
        shown.append(node.name if isinstance(node, S) else (node.name, played(node)))
        if fails(node):
            break
    return shown


def played(node):
    children = node.children
    if not node.is_fan_out:
        last = next((place for place, child in enumerate(children) if any(map(fails, child))), len(children))
        children = children[: last + 1]
    return [shape(child) for child in children]


def fails(node):
    if isinstance(node, S):
        return not node.ok
    return not node.ignores and any(fails(each) for child in node.children for each in child)


def bare(results, *, in_container=False):
    """The same of a history: steps by name, containers with their children's nodes."""
    if in_container:
        return [bare(each.step_history) for each in results]
    boxes = ("m", "n", "o", "p")
    return [
        (each.name, bare(each.step_history, in_container=True)) if each.name in boxes else each.name for each in results
    ]


@given(pipelines, st.sampled_from([0, 1]))
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_history_has_the_shape_of_what_ran(nodes, tick_s):
    """Any container in any other (M-285), whether or not the clock moves."""
    assert bare(history(*nodes, tick_s=tick_s)) == shape(nodes)


@given(pipelines)
@settings(max_examples=EXAMPLES, deadline=None)
def test_what_was_spent_is_shown_once(nodes):
    """What the nodes show and what failed branches hide is all there was (C-11, M-432)."""
    recorder = Recorder().play(*nodes)
    results = read(recorder)
    hidden = [each.metadata_.get("failed_branch_tokens", 0) for each in walk(results)]
    assert sum(each.token_counts for each in results) + sum(hidden) == sum(row.tokens for row in recorder.attempts)


def took_ms(recorder):
    began = process_time()
    read(recorder)
    return (process_time() - began) * 1000


@pytest.mark.large
@pytest.mark.parametrize(("kind", "count", "bound_ms"), [("parallel", 1_000, 500), ("loop", 10_000, 4_000)])
def test_long_histories_are_read_in_linear_time(kind, count, bound_ms):
    """Four times as much takes about four times as long, not sixteen times (M-447)."""
    small, large = (Recorder().play(C("box", kind, [[S("x")]] * size)) for size in (count // 4, count))
    quarter = min(took_ms(small) for _ in range(3))
    whole = float("inf")
    for _ in range(10):  # the best of them: what runs next to the test is not the reader's fault
        whole = min(whole, took_ms(large))
        if whole < min(bound_ms, 12 * quarter):
            break
    print(f"\n{kind} of {count}: {whole:.0f} ms, of a quarter: {quarter:.0f} ms")
    assert whole < bound_ms
    assert whole < 12 * quarter
