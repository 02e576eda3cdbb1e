"""Tree search on the engine in memory: the same path as a plain beam search finds, within its bounds (requirements §2.3)."""

from types import SimpleNamespace

import pytest
from container_parts import ONCE, SPENT, Flaky, assert_attributed, at, bare, fails, of, step
from hypothesis import given, settings
from hypothesis import strategies as st

from flujo_client import MapStep, Pipeline, Step, TreeSearchResult, TreeSearchStep, UsageLimits
from flujo_client.contract.recipes import cut
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.testing import LocalEngine

LETTERS = ["a", "b", "c", "d", "e"]


def letters(_):
    return LETTERS


def scored(scores, otherwise=0.0):
    """An evaluator that knows the score of each word."""
    return lambda node: scores.get("".join([*node.path, node.candidate]), otherwise)


def search(proposer=letters, evaluator=0.0, **options):
    judge = evaluator if callable(evaluator) or isinstance(evaluator, Step | Pipeline) else lambda _: evaluator
    return TreeSearchStep("search", proposer=proposer, evaluator=judge, **options)


def first_attempts(engine, result, name):
    """The first attempts at the steps of a name, by their addresses."""
    return [each.address for each in engine.history(result.run_id) if each.step == name and each.number == 1]


def beam_search(score, *, branching_factor, beam_width, max_depth, max_iterations, threshold):
    """What the books say, in one function."""
    beam, best, visited, left = [()], None, 0, max_iterations
    for _ in range(max_depth):
        beam = beam[:left]
        left = None if left is None else left - len(beam)
        found = [((*path, letter), score((*path, letter))) for path in beam for letter in LETTERS[:branching_factor]]
        visited += len(found)
        for path, each in found:
            if best is None or each > best[1]:
                best = path, each
        if best is None or best[1] >= threshold:
            break
        beam = [path for path, _ in sorted(found, key=lambda each: -each[1])][:beam_width]
    return best, visited


@settings(max_examples=25, deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.fixed_dictionaries(
        {
            "branching_factor": st.integers(1, 4),
            "beam_width": st.integers(1, 3),
            "max_depth": st.integers(1, 3),
            "max_iterations": st.none() | st.integers(1, 6),
        }
    ),
    st.sampled_from([1.0, 0.8, 0.5]),
)
def test_it_finds_what_a_plain_beam_search_finds(random, bounds, threshold):
    """Few different scores, so that many are equal: the first counts."""
    scores = {}

    def score(path):
        return scores.setdefault("".join(path), random.choice([0.0, 0.25, 0.5, 0.75, 0.9]))

    (path, best), visited = beam_search(score, **bounds, threshold=threshold)
    with LocalEngine() as engine:
        result = engine.run(bare(search(evaluator=scored(scores), goal_score_threshold=threshold, **bounds)), "?")
    assert result.output == TreeSearchResult(
        path=list(path), score=best, goal_reached=best >= threshold, visited=visited
    )


def test_it_ends_with_the_depth_that_reaches_a_goal(engine):
    result = engine.run(bare(search(evaluator=scored({"b": 0.5, "bb": 1}))), "word")
    assert (result.output.path, result.output.score, result.output.goal_reached) == (["b", "b"], 1.0, True)
    assert result.output.visited == 3 + 9


def test_of_equal_candidates_the_first_are_kept(engine):
    seen = []

    def propose(node):
        seen.append("".join(node.path))
        return LETTERS

    engine.run(bare(search(propose, 0.5, beam_width=2, max_depth=3)), "?")
    assert sorted(seen) == ["", "a", "aa", "ab", "b"]


def test_no_more_than_the_branching_factor_is_taken_and_proposers_are_told(engine):
    told = []

    def propose(node):
        told.append(node.branching_factor)
        return LETTERS

    result = engine.run(bare(search(propose, branching_factor=2, max_depth=1)), "?")
    assert (result.output.visited, told) == (2, [2])


@pytest.mark.parametrize(("most", "calls"), [(1, 1), (3, 3), (4, 4), (5, 5), (None, 7)])
def test_max_iterations_bounds_the_calls_of_the_proposer_in_all(engine, most, calls):
    result = engine.run(bare(search(max_depth=3, max_iterations=most)), "?")
    assert len(first_attempts(engine, result, "proposer")) == calls


def test_a_dead_end_ends_it_with_the_best_so_far(engine):
    result = engine.run(bare(search(lambda node: [] if node.path else ["a"], 0.25)), "?")
    assert (result.output.path, result.output.visited, result.output.goal_reached) == (["a"], 1, False)


def test_candidates_may_be_any_values(engine):
    result = engine.run(bare(search(lambda _: [{"n": 1}, {"n": 2}], lambda node: node.candidate["n"] / 2)), {"to": 2})
    assert result.output.path == [{"n": 2}]


def test_both_are_told_the_goal_and_the_path(engine):
    nodes = []

    def note(node):
        nodes.append(node)
        return 0.5 if "candidate" in type(node).model_fields else ["a"]

    engine.run(bare(search(note, note, max_depth=2)), "the goal")
    assert [each.model_dump() for each in nodes] == [
        {"goal": "the goal", "path": [], "branching_factor": 3},
        {"goal": "the goal", "path": [], "candidate": "a"},
        {"goal": "the goal", "path": ["a"], "branching_factor": 3},
        {"goal": "the goal", "path": ["a"], "candidate": "a"},
    ]


@pytest.mark.parametrize("answer", [("a",), {"candidates": ["a"]}, SimpleNamespace(candidates=["a"])])
def test_a_proposer_answers_a_list_or_an_object_with_one(engine, answer):
    assert engine.run(bare(search(lambda _: answer, max_depth=1)), "?").output.path == ["a"]


@pytest.mark.parametrize(
    ("answer", "score", "reason"),
    [(1, 1.0, None), (0.5, 0.5, None), ("0.5", 0.5, None), ({"score": 0.5, "reason": "so so"}, 0.5, "so so")],
)
def test_an_evaluator_answers_a_number_or_an_object_with_one(engine, answer, score, reason):
    output = engine.run(bare(search(evaluator=answer, max_depth=1)), "?").output
    assert (output.score, output.reason) == (score, reason)


@pytest.mark.parametrize(
    "answer", [1.5, -0.1, float("nan"), True, "good", None, {"reason": "none"}, {"score": True}, [0.5]]
)
def test_any_other_answer_is_asked_for_again_and_then_left_out(engine, answer):
    judge = Step("judge", lambda node: answer if node.candidate == "a" else 0.5)
    result = engine.run(bare(search(evaluator=judge, max_depth=1)), "?")
    assert (result.output.path, result.output.visited) == (["b"], 2)
    assert "depth 1, candidate 1: " in result.output.left_out[0]
    assert "a number from 0 to 1" in result.output.left_out[0]
    tried = [each.number for each in engine.history(result.run_id) if each.address.endswith("evaluate#1")]
    assert tried == [1, 2]


def test_an_answer_that_is_none_is_told_to_the_next_attempt(engine):
    def propose(_, *, guidance=None):
        return ["a"] if guidance and "list of candidates" in guidance else "a"

    assert engine.run(bare(search(propose, max_depth=1)), "?").output.path == ["a"]


def test_pipelines_may_propose_and_judge(engine):
    proposer = Pipeline([step("think", lambda node: "".join(node.path)), step("list", lambda text: [f"{text}x"])])
    evaluator = Pipeline([step("look"), step("rate", lambda node: len(node.candidate) / 4)])
    result = engine.run(bare(search(proposer, evaluator)), "?")
    assert (result.output.path, result.output.score) == (["x", "xx", "xxxx"], 1.0)


def test_an_answer_of_a_pipeline_that_is_none_is_left_out(engine):
    evaluator = Pipeline([step("rate", lambda node: "good" if node.candidate == "a" else 0.5)])
    output = engine.run(bare(search(evaluator=evaluator, max_depth=1)), "?").output
    assert (output.path, len(output.left_out)) == (["b"], 1)


def test_a_person_may_judge(engine):
    """No one waits meanwhile: the question pauses the run."""
    judge = Step.human_in_the_loop("judge", lambda node, _: f"How good is {node.candidate}?")
    run = engine.enqueue(bare(search(evaluator=judge, max_depth=1, branching_factor=2)), "?")
    engine.drain()
    first, second = engine.approvals(run)
    assert first.message == "How good is a?"
    engine.answer(run, 0.25, address=first.address)
    assert engine.answer(run, 0.75, address=second.address).output.path == ["b"]


@pytest.mark.parametrize(
    ("path", "tokens", "kept"),
    [
        (["one", "two"], 100, ["one", "two"]),
        (["12345", "1234", "1234"], 2, ["1234", "1234"]),
        ([{"a": 1}, "1234"], 1, ["1234"]),
        (["1234", {"a": 1}], 2, [{"a": 1}]),
        (["old", "123456789"], 2, ["12345678"]),
        ([], 1, []),
    ],
)
def test_a_path_is_cut_at_its_beginning(path, tokens, kept):
    """path_max_tokens, of four characters each."""
    assert cut(path, tokens) == kept


def test_a_cut_path_is_whole_in_the_result(engine):
    paths = []

    def propose(node):
        paths.append(node.path)
        return ["abcd"]

    result = engine.run(bare(search(propose, max_depth=3, path_max_tokens=1)), "?")
    assert paths == [[], ["abcd"], ["abcd"]]
    assert result.output.path == ["abcd"]
    assert (
        engine.run(bare(search(propose, lambda n: len(n.path) / 9, path_max_tokens=9)), "?").output.path == ["abcd"] * 5
    )


def test_a_candidate_that_cannot_be_evaluated_is_left_out_and_told(engine):
    judge = step("judge", lambda node: fails(node.candidate) if node.candidate == "b" else 0.5)
    output = engine.run(bare(search(evaluator=judge, max_depth=1)), "?").output
    assert (output.path, output.visited) == (["a"], 2)
    assert output.left_out == ["depth 1, candidate 2: Agent execution failed with NonRetryableError: no b"]


def test_a_proposer_that_fails_is_left_out_and_told(engine):
    propose = step("propose", lambda node: fails("more") if node.path == ["a"] else LETTERS)
    output = engine.run(bare(search(propose, max_depth=2)), "?").output
    assert output.visited == 3 + 6
    assert output.left_out == ["depth 2, proposer 1: Agent execution failed with NonRetryableError: no more"]


@pytest.mark.parametrize("who", ["proposer", "evaluator"])
def test_when_all_fail_the_step_fails(engine, who):
    given = {"proposer": letters, "evaluator": lambda _: 0.5, who: step("it", lambda _: fails("way"))}
    result = engine.run(bare(TreeSearchStep("search", **given)), "?")
    assert_attributed(engine, result, "search", "NonRetryableError", "no way")


def test_when_all_answers_are_none_the_step_fails(engine):
    result = engine.run(bare(search(evaluator=Pipeline([step("rate", lambda _: "good")]))), "?")
    assert_attributed(
        engine, result, "search", "NonRetryableError", "every candidate was left out; depth 1, candidate 1"
    )


def test_nothing_proposed_at_all_is_a_failure(engine):
    result = engine.run(bare(search(lambda _: [])), "?")
    assert_attributed(engine, result, "search", "NonRetryableError", "the proposer made no candidates")


def test_a_flaky_evaluator_is_tried_again(engine):
    flaky = Flaky(1)
    result = engine.run(bare(search(evaluator=lambda _: flaky.run(0.5), max_depth=1)), "?")
    assert (result.output.visited, result.output.left_out, flaky.calls) == (3, [], 4)


@pytest.mark.parametrize(("score", "succeeded"), [(0.5, False), (0.8, True), (1, True)])
def test_a_goal_may_be_required(engine, score, succeeded):
    made = search(evaluator=score, require_goal=True, goal_score_threshold=0.8, max_depth=1)
    result = engine.run(bare(made), "?")
    assert result.success is succeeded
    if not succeeded:
        said = "no path reached the goal: 0.8 is required, and the best of 3 has 0.5"
        assert_attributed(engine, result, "search", "NonRetryableError", said)


def test_its_own_context_sees_the_one_around_and_leaves_nothing_in_it(engine):
    topics = []

    def propose(_, *, context):
        topics.append((context.outer.title, context.tree_search_state))
        context.outer.title = context.mine = "changed"
        return ["a"]

    result = engine.run(of(step("first"), search(propose, 1)), "?", context={"title": "bees"})
    context = result.final_pipeline_context
    assert (topics, context.title) == ([("bees", None)], "bees")
    assert context.model_extra == {}
    assert set(context.step_outputs) == {"first", "search"}


def test_without_a_context_there_is_none_around(engine):
    seen = []

    def propose(_, *, context):
        seen.append(context.outer)
        return ["a"]

    result = engine.run(bare(search(propose, 1)), "?")
    assert (seen, result.final_pipeline_context) == ([None], None)


def test_every_call_is_an_attempt_of_its_own_and_is_in_the_result(engine):
    result = engine.run(bare(search(max_depth=1, branching_factor=2)), "?")
    assert first_attempts(engine, result, "proposer") == ["search/body/depths#1/propose#1"]
    assert len(first_attempts(engine, result, "evaluator")) == 2
    names = {each.name for each in at(result, "search", "search", "depths").step_history[0].step_history}
    assert {"propose", "evaluate"} <= names


def test_calls_are_paid_for_and_limits_end_the_run(engine):
    def judge(_):
        return AgentAnswer(0.5, SPENT)

    paid = engine.run(bare(search(evaluator=judge, max_depth=1)), "?")
    assert paid.total_cost_usd == 3 * SPENT.cost_usd
    limits = UsageLimits(total_cost_usd_limit=4 * SPENT.cost_usd)
    stopped = engine.run(bare(search(evaluator=judge, max_depth=5)), "?", limits=limits)
    assert (stopped.success, stopped.error.type_name) == (False, "UsageLimitExceededError")


def test_searches_stand_in_each_other_and_side_by_side(engine):
    inner = search(lambda node: ["x"], 1)
    both = Step.parallel("both", {"a": search(max_depth=1), "b": search(evaluator=1)})
    judged = search(Pipeline([inner, step("list", lambda found: found.path)]), 1)
    result = engine.run(bare(both, judged), "?")
    assert result.output.path == ["x"]


def test_it_runs_again_and_again(engine):
    pipeline = of(MapStep("each", pipeline_to_run=search(max_depth=2), iterable_input="items", parallel=True))
    result = engine.run(pipeline, "?", context={"items": ["x", "y"]})
    assert [each.visited for each in result.output] == [12, 12]


def test_a_failed_search_may_have_a_fallback(engine):
    made = search(evaluator=0.5, require_goal=True, max_depth=1).fallback(step("else", lambda _: "instead"))
    assert engine.run(bare(made), "?").output == "instead"


def test_a_kept_search_is_not_made_again(engine):
    calls = []

    def propose(_):
        calls.append(1)
        return ["a"]

    pipeline = bare(Step.cached(search(step("propose", propose, config=ONCE), 1)))
    assert engine.run(pipeline, "same").output == engine.run(pipeline, "same").output
    assert len(calls) == 1
