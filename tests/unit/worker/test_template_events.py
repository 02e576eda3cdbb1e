"""What a run's story says of its templates: names that are missing, and names that were resolved, never values (requirements §2.7)."""

import pytest

from flujo_client import Pipeline, PipelineContext, PluginOutcome, Settings, Step
from flujo_worker.agents.prompts.render import render_text
from flujo_worker.testing import LocalEngine

SECRET = "nobody-reads-this"
LOOP = """
steps:
  - kind: loop
    name: more
    loop:
      body: [{name: x, uses: "blueprint_parts:echo"}]
      max_loops: 2
      exit_expression: "false"
      propagation: {next_input: "{{ this }}{{ context.again }}"}
      output: "{{ context.end }}{{ context.given }}"
"""
QUESTION = """
steps: [{kind: hitl, name: ask, message: "Is {{ context.nothing }} {{ context.given }} right?"}]
"""
CHANGE = """
steps:
  - kind: loop
    name: more
    loop:
      body: [{name: x, uses: "blueprint_parts:echo"}]
      max_loops: 1
      exit_expression: "true"
      state: {set: [{target: context.last, value: "{{ context.nothing }}{{ context.given }}"}]}
"""
STEP = "steps: [{name: a, uses: 'blueprint_parts:echo', input: 'x {{ context.nothing }} {{ context.given }} {{ previous_step }}'}]"


def lower(data):
    return data.lower()


def upper(data):
    return data.upper()


class Elsewhere:
    """A plugin that wants the other agent's answer."""

    def validate(self, data):
        return PluginOutcome(success=data.isupper(), redirect_to=upper if data.islower() else None)


@pytest.fixture
def template_events():
    """Runs a pipeline under these settings, and gives the template events of its events."""

    def template_events(pipeline, *, said=(), **template):
        if isinstance(pipeline, str):
            pipeline = Pipeline.from_yaml_text(pipeline)
        with LocalEngine(Settings.model_validate({"template": template})) as engine:
            run = engine.enqueue(pipeline, "hi", context={"given": SECRET, "conversation_history": list(said)})
            engine.drain()
            return [each for each in engine.story(run) if each.name.startswith("template.")]

    return template_events


def said(events, name="template.missing"):
    return [(each.data.get("step"), each.data.get("of"), each.data["name"]) for each in events if each.name == name]


@pytest.mark.parametrize(
    ("pipeline", "missing"),
    [
        (LOOP, [("more", "iteration_input", "context.again"), ("more", "output", "context.end")]),
        (QUESTION, [("ask", "question", "context.nothing")]),
        (CHANGE, [(None, None, "context.nothing")]),
    ],
)
def test_a_missing_name_is_told_wherever_a_template_stands(template_events, pipeline, missing):
    """§2.7: `warn`, of loops, questions and changes of the context as of a step's `input`."""
    events = template_events(pipeline)
    assert said(events) == missing
    assert {each.level for each in events} == {"warning"}


@pytest.mark.parametrize("pipeline", [LOOP, QUESTION, CHANGE])
def test_no_one_is_told_when_missing_names_are_ignored(template_events, pipeline):
    assert template_events(pipeline, undefined_variables="ignore") == []


@pytest.mark.parametrize("pipeline", [LOOP, QUESTION, CHANGE])
def test_a_missing_name_fails_the_run_where_settings_are_strict(pipeline):
    with LocalEngine(Settings.model_validate({"template": {"undefined_variables": "strict"}})) as engine:
        result = engine.run(Pipeline.from_yaml_text(pipeline), "hi", context={"given": SECRET})
    assert not result.success
    assert "TemplateResolutionError" in str(result.error)


def test_resolved_templates_are_told_by_name(template_events):
    """§2.7: `log_resolution`."""
    resolved = [each.data for each in template_events(STEP, log_resolution=True) if each.name == "template.resolved"]
    assert resolved == [{"names": ["context.given", "context.nothing", "previous_step"]}]


@pytest.mark.parametrize(("template", "times"), [("{{#each history}}{{ this.content }}{{/each}}", 1), (None, 0)])
def test_a_history_is_told_once_an_attempt_and_only_where_its_template_is_a_users(template_events, template, times):
    """§2.7: `log_resolution`; also where another agent is asked after the first."""
    say = Step("say", lower, plugins=[Elsewhere()])
    loop = Step.loop_until("chat", Pipeline([say]), lambda *_: True, 1, conversation=True, history_template=template)
    pipeline = Pipeline([loop], context_model=PipelineContext)
    events = template_events(pipeline, said=[{"role": "user", "content": SECRET}], log_resolution=True)
    assert [each.data for each in events] == [{"names": ["history"]}] * times


@pytest.mark.parametrize("pipeline", [STEP, LOOP, QUESTION, CHANGE])
def test_no_value_is_told(template_events, pipeline):
    events = template_events(pipeline, log_resolution=True)
    assert "template.resolved" in {each.name for each in events}
    assert SECRET not in repr([each.data for each in events])


def test_a_resolved_prompt_is_told_with_its_variables_names(template_events):
    """§2.7: `log_resolution`."""
    pipeline = Pipeline([Step("a", lambda data: render_text("{{ data }} {{ other }}", data=data, other=SECRET))])
    [event] = template_events(pipeline, log_resolution=True)
    assert (event.name, event.data) == (
        "template.resolved",
        {"template": "given as text", "names": ["data", "other"]},
    )


@pytest.mark.parametrize("pipeline", [STEP, LOOP, QUESTION, CHANGE])
def test_what_was_resolved_is_not_told_unless_it_is_asked_for(template_events, pipeline):
    assert "template.resolved" not in {each.name for each in template_events(pipeline)}
