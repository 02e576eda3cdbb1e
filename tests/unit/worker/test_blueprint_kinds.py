"""Every kind of step of a blueprint does what its keys say, on the engine in memory (SYS-30, requirements §2.6)."""

import blueprint_parts as parts
import pytest

from flujo_client import Pipeline, Settings
from flujo_worker.testing import LocalEngine


@pytest.fixture
def run(engine, built):
    return lambda text, value=None, **options: engine.run(built(text), value, **options)


def failed(result):
    return next(step.feedback for step in result.step_history if not step.success)


def test_steps_run_one_after_the_other(run):
    result = run("steps: [{name: a, uses: 'blueprint_parts:upper'}, {step: b, agent: 'blueprint_parts:shout'}]", "hi")
    assert (result.output, [step.name for step in result.step_history]) == ("HI!", ["a", "b"])


def test_a_template_is_the_agents_input(run):
    """§2.6: previous_step, steps and context in one text."""
    text = """
steps:
  - {name: a, uses: "blueprint_parts:upper"}
  - {name: b, uses: "blueprint_parts:shout"}
  - name: c
    uses: blueprint_parts:echo
    input: "{{ steps.a.output }} {{ previous_step }} {{ context.topic }} {{ context.none or 'else' }}"
"""
    assert run(text, "hi", context={"topic": "bees"}).output == "HI HI! bees else"


def test_a_template_of_one_tag_keeps_the_value(run):
    text = "steps: [{name: a, uses: 'blueprint_parts:double', input: '{{ context.n }}'}]"
    assert run(text, "?", context={"n": 21}).output == 42


def test_a_missing_name_leaves_a_gap_and_is_told(run, engine):
    result = run("steps: [{name: a, uses: 'blueprint_parts:echo', input: 'x {{ context.nothing }} y'}]", "hi")
    assert result.output == "x  y"
    assert [each.data["name"] for each in engine.story(result.run_id) if each.name == "template.missing"] == [
        "context.nothing"
    ]


@pytest.mark.parametrize(("undefined", "output"), [("ignore", "x  y"), ("strict", None)])
def test_the_settings_say_what_becomes_of_a_missing_name(undefined, output):
    """§2.8: `[template] undefined_variables` holds for the input of a step, too."""
    pipeline = Pipeline.from_yaml_text(
        "steps: [{name: a, uses: 'blueprint_parts:echo', input: 'x {{ context.nothing }} y', config: {max_retries: 3}}]"
    )
    with LocalEngine(Settings.model_validate({"template": {"undefined_variables": undefined}})) as engine:
        result = engine.run(pipeline, "hi")
        assert [each for each in engine.story(result.run_id) if each.name == "template.missing"] == []
    assert result.unchecked().output == output
    assert (output is None) == ("context.nothing" in (result.step_history[0].feedback or ""))
    assert result.step_history[0].attempts == 1, "C-37: the same values would be missing again"


def test_what_a_step_gives_is_sunk_and_merged(run):
    text = """
steps:
  - {name: a, uses: "blueprint_parts:echo", sink_to: first}
  - {name: b, uses: "blueprint_parts:echo", updates_context: true, input: "{{ context.update }}"}
"""
    context = run(text, 3, context={"update": {"second": 4}}).final_pipeline_context
    assert (context.first, context.second) == (3, 4)


def test_judges_and_processors_stand_in_their_order(run):
    """§2.5: processors, plugins by priority, validators."""
    text = """
steps:
  - name: a
    uses: blueprint_parts:echo
    prompt_processors: ["blueprint_parts:exclaim"]
    output_processors: ["blueprint_parts:exclaim"]
    plugins: [{plugin: "blueprint_parts:replacer", priority: 1}, "blueprint_parts:wrapper"]
"""
    assert run(text, "hi").output == "[<hi??>]"


def test_a_validator_ends_the_step(run):
    result = run("steps: [{name: a, uses: 'blueprint_parts:echo', validators: ['blueprint_parts:is_positive']}]", -1)
    assert "is_positive: refused the output" in failed(result)


def test_config_says_how_often_a_step_is_tried(run):
    result = run("steps: [{name: a, uses: 'blueprint_parts:fail', config: {max_retries: 2}}]", "it")
    assert result.step_history[0].attempts == 3


def test_a_fallback_runs_with_the_same_input(run):
    text = """
steps:
  - name: a
    uses: blueprint_parts:fail
    config: {max_retries: 0}
    fallback: {name: other, uses: "blueprint_parts:shout"}
"""
    assert run(text, "hi").output == "hi!"


def test_an_input_has_to_fit_its_schema(run):
    text = "steps: [{name: a, uses: 'blueprint_parts:echo', input_schema: {type: integer}, config: {max_retries: 3}}]"
    result = run(text, "hi")
    assert "input_schema: answer breaks the rule 'type'" in failed(result)
    assert result.step_history[0].attempts == 1
    assert run(text, 3).output == 3


def test_an_output_has_to_fit_its_schema(run):
    text = "steps: [{name: a, uses: 'blueprint_parts:echo', output_schema: {type: integer}}]"
    assert "output_schema: answer breaks the rule 'type'" in failed(run(text, "hi"))
    assert run(text, 3).output == 3


def test_branches_run_side_by_side(run):
    text = """
steps:
  - kind: parallel
    name: both
    branches:
      a: [{name: x, uses: "blueprint_parts:double"}, {name: y, uses: "blueprint_parts:double"}]
      b: {name: x, uses: "blueprint_parts:add_one"}
    ignore_branch_names: true
"""
    assert run(text, 3).output == {"a": 12, "b": 4}


@pytest.mark.parametrize(
    ("reduce", "output"),
    [("values", [6, 4]), ("keys", ["a", "b"]), ("first", 6), ("last", 4), ("blueprint_parts:total", 10)],
)
def test_a_reducer_makes_the_output(run, reduce, output):
    text = f"""
steps:
  - kind: parallel
    name: both
    branches: {{a: {{name: x, uses: "blueprint_parts:double"}}, b: {{name: x, uses: "blueprint_parts:add_one"}}}}
    reduce: {reduce}
    merge_strategy: no_merge
"""
    assert run(text, 3).output == output


def test_a_merge_function_merges(run):
    text = """
steps:
  - kind: parallel
    name: both
    branches: {a: {name: x, uses: "blueprint_parts:double"}, b: {name: x, uses: "blueprint_parts:add_one"}}
    merge_strategy: blueprint_parts:keep
"""
    assert run(text, 3).final_pipeline_context.merged == ["a", "b"]


def test_a_failed_branch_may_be_ignored(run):
    text = """
steps:
  - kind: parallel
    name: both
    on_branch_failure: ignore
    max_concurrency: 1
    branches: {a: {name: x, uses: "blueprint_parts:fail"}, b: {name: x, uses: "blueprint_parts:add_one"}}
"""
    result = run(text, 3)
    assert (result.success, result.output["b"]) == (True, 4)


@pytest.mark.parametrize(("value", "output"), [("hi", "hi!"), ("hello", "HELLO")])
@pytest.mark.parametrize(
    "condition", ["condition: blueprint_parts:is_long", "condition_expression: \"previous_step in ['hello']\""]
)
def test_a_condition_chooses_the_branch(run, condition, value, output):
    text = f"""
steps:
  - kind: conditional
    name: which
    {condition}
    branches:
      true: {{name: x, uses: "blueprint_parts:upper"}}
      false: {{name: y, uses: "blueprint_parts:shout"}}
"""
    assert run(text, value).output == output


def test_the_default_branch_and_the_mappers(run):
    text = """
steps:
  - kind: conditional
    name: which
    condition_expression: context.kind
    branches: {a: {name: x, uses: "blueprint_parts:fail"}}
    default_branch: {name: y, uses: "blueprint_parts:double"}
    branch_input_mapper: blueprint_parts:halve
    branch_output_mapper: blueprint_parts:tagged
"""
    assert run(text, 10, context={"kind": "?"}).output == {"key": "?", "output": 10}


@pytest.mark.parametrize("exit_by", ["exit_condition: blueprint_parts:at_four", "exit_expression: previous_step >= 4"])
def test_a_loop_ends_when_it_is_told(run, exit_by):
    text = f"""
steps:
  - kind: loop
    name: more
    loop: {{body: {{name: x, uses: "blueprint_parts:add_one"}}, {exit_by}, max_loops: 9}}
"""
    result = run(text, 1)
    assert (result.output, result.step_history[0].attempts) == (4, 3)


def test_a_loop_changes_the_context_and_makes_its_output(run):
    """§2.6: init, state, propagation and output."""
    text = """
steps:
  - kind: loop
    name: more
    loop:
      body: [{name: x, uses: "blueprint_parts:add_one"}]
      init: {set: [{target: scratchpad.seen, value: []}, {target: count, value: 10}]}
      state:
        append: [{target: scratchpad.seen, value: "{{ previous_step }}"}]
        merge: [{target: scratchpad.last, value: {at: "{{ steps.x.output }}"}}]
        set: [{target: count, value: "{{ previous_step }}"}]
      propagation: {next_input: "{{ context.count }}"}
      exit_expression: context.count >= 13
      output: {seen: "{{ context.scratchpad.seen }}", text: "last {{ previous_step }}"}
"""
    result = run(text, 10)
    assert result.output == {"seen": [11, 12, 13], "text": "last 13"}
    assert result.final_pipeline_context.scratchpad == {"seen": [11, 12, 13], "last": {"at": 13}}


def test_a_loops_mappers(run):
    text = """
steps:
  - kind: loop
    name: more
    loop:
      body: [{name: x, uses: "blueprint_parts:double"}]
      max_loops: 3
      exit_expression: "false"
      initial_input_mapper: blueprint_parts:halve
      iteration_input_mapper: blueprint_parts:halve
      loop_output_mapper: blueprint_parts:halve
"""
    assert run(text, 8).output == 4


def test_a_loop_may_fail_at_its_end(run):
    text = """
steps:
  - kind: loop
    name: more
    loop: {body: [{name: x, uses: "blueprint_parts:echo"}], max_loops: 2, exit_expression: "false", fails_at_max: true}
"""
    assert not run(text, 8).success


@pytest.mark.parametrize(("said", "times"), [({"action": "finish"}, 1), ({"type": "finish"}, 1), ({"action": "go"}, 2)])
def test_a_loop_stops_when_its_agent_has_finished(run, said, times):
    text = """
steps:
  - kind: loop
    name: more
    loop: {body: [{name: x, uses: "blueprint_parts:echo"}], max_loops: 2, stop_when: agent_finished}
"""
    assert run(text, said).step_history[0].attempts == times


@pytest.mark.parametrize(("following", "output"), [("previous_output", 3), ("'{{ context.n }}'", 8)])
def test_what_the_next_iteration_gets(run, following, output):
    text = f"""
steps:
  - kind: loop
    name: more
    loop: {{body: [{{name: x, uses: "blueprint_parts:add_one"}}], max_loops: 2, exit_expression: "false", propagation: {following}}}
"""
    assert run(text, 1, context={"n": 7}).output == output


def test_the_context_is_handed_on_when_the_body_writes_it(run):
    """§2.6: propagation auto."""
    text = """
steps:
  - kind: loop
    name: more
    loop:
      body: [{name: x, uses: "blueprint_parts:echo", input: "{{ context.update }}", updates_context: true}, {name: y, uses: "blueprint_parts:counted", input: "{{ this }}"}]
      max_loops: 2
      exit_expression: "false"
      propagation: auto
"""
    assert run(text, 1, context={"update": {"n": 7}}).output == {"n": 7}


@pytest.mark.parametrize("where", ["numbers", "context.numbers", "'{{ context.numbers }}'"])
@pytest.mark.parametrize("how", ["", "parallel: true", "max_concurrency: 2"])
def test_a_map_runs_its_body_for_each_item(run, where, how):
    text = f"""
steps:
  - kind: map
    name: each
    map:
      iterable_input: {where}
      {how}
      body: {{name: x, uses: "blueprint_parts:double", input: "{{{{ this }}}}"}}
"""
    assert run(text, None, context={"numbers": [1, 2, 3]}).output == [2, 4, 6]


def test_a_map_takes_the_output_of_a_step(run):
    text = """
steps:
  - {name: list, uses: "blueprint_parts:echo"}
  - {kind: map, name: each, map: {iterable_input: steps.list.output, body: {name: x, uses: "blueprint_parts:double"}}}
"""
    assert run(text, [1, 2]).output == [2, 4]


@pytest.mark.parametrize("how", ["", "parallel: true"])
def test_a_maps_init_prepares_the_context_and_its_finalize_shapes_the_output(run, how):
    """§2.6: the items are looked for after `init`; `finalize` sees all outputs and the context they leave."""
    text = f"""
steps:
  - kind: map
    name: each
    map:
      init: {{set: [{{target: numbers, value: "{{{{ previous_step }}}}"}}], append: [{{target: seen, value: init}}]}}
      iterable_input: numbers
      {how}
      body: {{name: x, uses: "blueprint_parts:double"}}
      finalize: {{output: {{all: "{{{{ previous_step }}}}", first: "{{{{ this[0] }}}}", after: "{{{{ context.seen }}}}"}}}}
"""
    result = run(text, [1, 2])
    assert result.output == {"all": [2, 4], "first": 2, "after": ["init"]}
    assert [step.name for step in result.step_history] == ["each.init", "each"]
    assert result.final_pipeline_context.step_outputs["each"] == result.output


@pytest.mark.parametrize(
    "finalize",
    [
        "'{{ previous_step | length }}'",
        "{output_template: '{{ this | length }}'}",
        "{output_mapper: 'blueprint_parts:counts'}",
    ],
)
def test_every_form_of_finalize(run, finalize):
    text = f"""
steps:
  - {{kind: map, name: each, map: {{iterable_input: numbers, body: {{name: x, uses: "blueprint_parts:double"}}, finalize: {finalize}}}}}
"""
    assert run(text, None, context={"numbers": [1, 2, 3]}).output == 3


def test_a_loop_keeps_its_conversation(run):
    """§2.6: what its own `state` does is said by no one."""
    text = """
steps:
  - kind: loop
    name: chat
    loop:
      conversation: true
      ai_turn_source: all_agents
      user_turn_sources: [guest]
      history_management: {strategy: truncate_turns, max_turns: 3}
      history_template: "{{#each history}}{{ this.content }};{{/each}}"
      max_loops: 2
      exit_expression: context.rounds > 3
      state: {set: [{target: rounds, value: 1}]}
      body: [{name: host, uses: "blueprint_parts:recall"}, {name: guest, uses: "blueprint_parts:shout"}]
      output: "{{ context.conversation_history }}"
"""
    said = [(turn["role"], turn["content"]) for turn in map(dict, run(text, "hi").output)]
    assert said == [
        ("assistant", "None"),
        ("user", "None!"),
        ("assistant", "None;None!;"),
        ("user", "None;None!;!"),
    ]


def test_a_router_runs_what_its_agent_names(run):
    text = """
steps:
  - kind: dynamic_router
    name: which
    router:
      router_agent: blueprint_parts:names
      branches: {a: {name: x, uses: "blueprint_parts:double"}, b: {name: x, uses: "blueprint_parts:add_one"}, c: {name: x, uses: "blueprint_parts:fail"}}
"""
    assert run(text, 3).output == {"a": 6, "b": 4}


def test_a_routers_agent_gets_its_input(run):
    text = """
steps:
  - kind: dynamic_router
    name: which
    input: "{{ context.chosen }}"
    router:
      router_agent: blueprint_parts:echo
      branches: {a: {name: x, uses: "blueprint_parts:double"}, b: {name: x, uses: "blueprint_parts:add_one"}}
"""
    assert run(text, 3, context={"chosen": ["a"]}).output == {"a": 6}


def test_a_person_is_asked_and_answers(engine, built):
    text = """
steps:
  - kind: hitl
    name: ask
    message: "Is {{ previous_step }} right?"
    input_schema: {type: object, properties: {ok: {type: boolean}}, required: [ok]}
    sink_to: answer
  - {name: after, uses: "blueprint_parts:echo", input: "{{ resume_input.ok }} {{ context.answer.ok }}"}
"""
    run_id = engine.enqueue(built(text), "it")
    engine.drain()
    (asked,) = engine.approvals(run_id)
    assert (asked.message, asked.schema["required"]) == ("Is it right?", ["ok"])
    assert engine.answer(run_id, {"ok": True}).output == "true true"


def test_a_result_is_kept_and_given_again(run):
    text = """
steps:
  - {kind: cache, wrapped_step: {name: x, uses: "blueprint_parts:counted"}, ttl_s: 60, cache_backend: "blueprint_parts:backend"}
"""
    parts.CALLS.clear()
    assert [run(text, "once").output, run(text, "once").output, parts.CALLS] == ["once", "once", ["once"]]


def test_a_machine_goes_where_its_transitions_lead(run):
    """§2.6: `on` is a text, not true (YAML 1.1)."""
    text = """
steps:
  - kind: StateMachine
    name: machine
    start_state: draft
    end_states: [done, lost]
    transitions:
      - {from: draft, to: lost, when: previous_step > 100}
      - {from: draft, on: success, to: draft, when: "previous_step < 4"}
      - {from: draft, on: success, to: check}
      - {from: check, on: failure, to: done}
      - {from: "*", to: lost}
    states:
      draft: [{name: x, uses: "blueprint_parts:double"}]
      check: {name: x, uses: "blueprint_parts:fail"}
      done: {name: y, uses: "blueprint_parts:shout", input: ended}
"""
    assert run(text, 1).output == "ended!"


def test_an_imported_blueprint_runs_as_a_step(run):
    text = """
imports:
  child:
    agents: {}
    steps: [{name: inner, uses: "blueprint_parts:double", sink_to: said}]
  python: blueprint_parts:nested
steps:
  - {name: first, uses: imports.child, config: {outputs: [{child: said, parent: heard}]}}
  - {name: second, uses: imports.python, input_to: both}
""".replace(", input_to: both", "")
    result = run(text, 2)
    assert result.output == 8
    assert result.final_pipeline_context.heard == 4


def test_an_imports_failure_may_be_passed_over(run):
    text = """
imports: {child: {steps: [{name: inner, uses: "blueprint_parts:fail"}]}}
steps: [{name: first, uses: imports.child, config: {on_failure: continue_with_default, default: {n: 1}}}]
"""
    assert run(text, 2).output == {"n": 1}


def test_an_imports_failure_may_be_told(run):
    text = """
imports: {child: {steps: [{name: inner, uses: "blueprint_parts:fail"}]}}
steps: [{name: first, uses: imports.child, config: {on_failure: tell}}]
"""
    assert run(text, 2).output == {"error": "Agent execution failed with ValueError: cannot do 2"}


def test_limits_and_meta_and_a_queue_stand_in_the_plan(built):
    text = """
steps:
  - {name: a, uses: "blueprint_parts:echo", usage_limits: {total_tokens_limit: 5}, meta: {mine: 1}, queue: slow}
"""
    step = built(text).steps[0]
    assert (step.usage_limits.total_tokens_limit, step.meta, step.queue) == (5, {"mine": 1}, "slow")


def test_a_step_in_the_background_is_a_run_of_its_own(run, engine):
    text = """
steps:
  - {kind: parallel, name: a, config: {execution_mode: background}, branches: {x: {name: x, uses: "blueprint_parts:echo"}}}
  - {name: b, uses: "blueprint_parts:shout", config: {execution_mode: background}}
"""
    result = run(text, "hi")
    assert (result.output, len(engine.children(result.run_id))) == ("hi", 2)


def test_resources_and_a_context_model_are_named(run):
    text = """
context_model: blueprint_parts:Numbers
resources: blueprint_parts:resources
steps:
  - {name: a, uses: "blueprint_parts:pooled"}
"""
    result = run(text, 1, context={"numbers": [1]})
    assert (result.output, type(result.final_pipeline_context)) == ("open", parts.Numbers)


def test_a_pipeline_without_a_context(run):
    text = "{context_model: null, steps: [{name: a, uses: 'blueprint_parts:echo'}]}"
    assert run(text, 1).final_pipeline_context is None


@pytest.mark.parametrize("path", ["numbers", "context.numbers"])
def test_a_change_goes_where_templates_read_it(run, path):
    """§2.6: `context.` may stand before a path, where it is written as where it is read."""
    text = f"""
steps:
  - kind: map
    name: each
    map:
      init: {{set: [{{target: {path}, value: [1, 2]}}]}}
      iterable_input: context.numbers
      body: {{name: x, uses: "blueprint_parts:echo"}}
"""
    assert run(text).output == [1, 2]
