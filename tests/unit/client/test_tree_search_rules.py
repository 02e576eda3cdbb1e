"""The rules know that a tree search has its own context (requirements §2.3, §2.6)."""

import pytest

from flujo_client.blueprint.validate import validate_text


def searching(step, around="", **more):
    """A blueprint whose search has this step as its evaluator, in a pipeline with a closed context."""
    keys = "".join(f", {key}: {value}" for key, value in more.items())
    search = f"{{kind: tree_search, name: find, proposer: 'broken_parts:echo', evaluator: {{name: judge, uses: 'broken_parts:echo', {step}}}{keys}}}"
    return f"context_model: broken_parts:Letter\nsteps:\n{around or '  - SEARCH'}".replace("SEARCH", search)


PARALLEL = """
  - kind: parallel
    name: both
    context_include_keys: [title]
    branches:
      a: SEARCH
      b: {name: other, uses: 'broken_parts:echo', sink_to: title}
"""
LOOP = """
  - kind: loop
    name: again
    loop: {body: [{name: w, agent: {model: test}}, SEARCH], exit_expression: context.title}
"""


def rules_found(text):
    found = validate_text(text, allowed=("*",)).findings
    return [(each.rule, each.key.rpartition(".")[2]) for each in found]


@pytest.mark.parametrize(
    "text",
    [
        searching("sink_to: mine, input: '{{ context.mine }} {{ context.outer.title }} {{ this.candidate }}'"),
        searching("sink_to: title", PARALLEL),
        searching("input: '{{ context.outer.title }}'", PARALLEL),
    ],
)
def test_what_is_in_the_search_is_not_held_against_the_context_around_it(text):
    assert rules_found(text) == []


def test_a_fallback_of_the_search_runs_in_the_context_around_it():
    other = "{name: else, uses: 'broken_parts:echo', input: '{{ context.outer }}'}"
    assert rules_found(searching("sink_to: mine", fallback=other)) == [("V-CTX1", "input")]


def test_what_a_search_writes_ends_no_loop_around_it():
    assert ("V-L1", "exit_expression") in rules_found(searching("sink_to: title", LOOP))


STEPS = """
steps:
  - {name: first, uses: "broken_parts:echo"}
  - kind: tree_search
    name: find
    proposer: [{name: think, uses: "broken_parts:echo"}, {name: list, uses: "broken_parts:echo", input: "{{ steps.NAME.output }}"}]
    evaluator: "broken_parts:echo"
  - {name: last, uses: "broken_parts:echo", input: "{{ steps.OTHER.output }}"}
"""


@pytest.mark.parametrize(
    ("inside", "outside", "found"),
    [
        ("think", "find", []),
        ("first", "find", [("V-CTX2", "input")]),
        ("think", "think", [("V-CTX2", "input")]),
    ],
)
def test_steps_are_read_where_they_run(inside, outside, found):
    """Outputs of steps are kept in the context, and the search has another."""
    assert rules_found(STEPS.replace("NAME", inside).replace("OTHER", outside)) == found
