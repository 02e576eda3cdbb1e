"""Agents of a blueprint against a provider's API: prompt, schema, settings, tools, and AROS as its keys say (seed S1 §5.2)."""

import json

import pytest
from pydantic import ValidationError

from flujo_client import Pipeline
from flujo_client.config.manager import Settings
from flujo_client.pipeline.compile import compile_plan
from flujo_worker.testing import LocalEngine
from tests.support.openai_server import OpenAIServer, Said


@pytest.fixture
def server(monkeypatch):
    with OpenAIServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        yield server


@pytest.fixture
def ask(server, engine):
    """Run a blueprint with these answers."""

    def ask(text, *answers, value="in", **options):
        server.answers = list(answers)
        return engine.run(Pipeline.from_yaml_text(text), value, **options)

    return ask


AGENT = """
agents:
  writer:
    model: openai-chat:gpt-4o
    system_prompt: {text: "Write {{ tone }} letters.", variables: {tone: short}}
    model_settings: {temperature: 0.25, max_tokens: 77}
    timeout: 9
    max_retries: 2
steps:
  - {name: first, uses: agents.writer, input: "to {{ previous_step }}"}
  - {name: second, uses: agents.writer, config: {temperature: 0.5, max_retries: 0}}
"""


def test_prompt_input_and_settings_are_sent(ask, server):
    assert ask(AGENT, "a letter", value="bob").output == "a letter"
    first, second = (request.body for request in server.requests)
    assert [message["content"] for message in first["messages"]] == ["Write short letters.", "to bob"]
    assert (first["temperature"], second["temperature"]) == (0.25, 0.5)
    assert "77" in (str(first.get("max_tokens")), str(first.get("max_completion_tokens")))


def test_an_agents_timeout_and_retries_are_its_steps_own(ask):
    first, second = Pipeline.from_yaml_text(AGENT).steps
    assert (first.config.timeout_s, first.config.max_retries) == (9, 2)
    assert (second.config.timeout_s, second.config.max_retries) == (9, 0)
    assert ask(AGENT, Said(status=500), Said(status=500), "third time", "last").output == "last"


SCHEMA = """
agents:
  writer:
    model: openai-chat:gpt-4o
    output_schema: {type: object, properties: {n: {type: integer, minimum: 3}}, required: [n]}
steps: [{name: a, uses: agents.writer}]
"""


def test_an_output_schema_is_asked_for_and_held(ask, server):
    """§2.6: the schema is the agent's output type; what does not hold is tried again with the reason."""
    result = ask(SCHEMA, Said(arguments='{"n": 1}'), Said(arguments='{"n": 4}'))
    assert (result.output, result.step_history[0].attempts) == ({"n": 4}, 2)
    asked = server.requests[0].body["tools"][0]["function"]["parameters"]
    assert asked["properties"]["n"] == {"type": "integer", "minimum": 3}
    assert "not accepted" in json.dumps(server.requests[1].body["messages"])


@pytest.mark.parametrize(
    ("schema", "arguments", "output"),
    [
        ("{type: integer}", '{"response": 3}', 3),
        ("{type: array, items: {type: string}}", '{"response": ["a"]}', ["a"]),
        ("{enum: [a, b]}", '{"response": "b"}', "b"),
        ("{$ref: '#/$defs/point', $defs: {point: {type: object, properties: {x: {type: number}}, required: [x]}}}", '{"response": {"x": 1}}', {"x": 1}),
    ],
)  # fmt: skip
def test_schemas_of_every_kind(ask, schema, arguments, output):
    text = (
        f"agents: {{w: {{model: openai-chat:gpt-4o, output_schema: {schema}}}}}\nsteps: [{{name: a, uses: agents.w}}]"
    )
    result = ask(text, Said(arguments=arguments))
    assert result.unchecked().output == output, result.step_history


def test_a_text_with_a_rule_is_held(ask):
    text = "agents: {w: {model: openai-chat:gpt-4o, output_schema: {type: string, maxLength: 3}}}\nsteps: [{name: a, uses: agents.w}]"
    assert not ask(text, Said(arguments='{"response": "long"}')).success


def test_a_tool_is_called(ask, server):
    text = """
agents: {w: {model: openai-chat:gpt-4o, tools: ["blueprint_tools:lookup"]}}
steps: [{name: a, uses: agents.w}]
"""
    result = ask(text, Said(arguments='{"name": "bob"}'), "done")
    assert result.output == "done"
    assert server.requests[0].tool == "lookup"
    assert "bob is known" in json.dumps(server.requests[1].body["messages"])


def test_a_tool_of_the_agent_librarys_is_called_as_it_says(ask, server):
    """Requirements §2.6: a reference to a `pydantic_ai.Tool`, with its own name and description."""
    text = """
agents: {w: {model: openai-chat:gpt-4o, tools: ["blueprint_tools:finder"]}}
steps: [{name: a, uses: agents.w}]
"""
    assert ask(text, Said(arguments='{"name": "bob"}'), "done").output == "done"
    [offered] = server.requests[0].body["tools"]
    assert (offered["function"]["name"], offered["function"]["description"]) == ("find_person", "Finds a person.")
    assert "bob is known" in json.dumps(server.requests[1].body["messages"])


SEED = """
agents:
  plan_checker:
    model: openai-chat:gpt-4o
    output_schema: {type: object, properties: {is_valid: {type: boolean}, score: {type: number}, feedback: {type: string}}, required: [is_valid]}
  my_agent_step:
    model: openai-chat:gpt-4o
    output_schema: {type: object, properties: {n: {type: integer}, ok: {type: boolean}}, required: [n], additionalProperties: false}
    processing:
      structured_output: auto          # off | auto | openai_json | outlines | xgrammar
      aop: minimal                     # off | minimal | full
      coercion:
        tolerant_level: 0              # 0=off, 1=json5, 2=json-repair
        allow:
          integer: ["str->int"]
          number:  ["str->float"]
          boolean: ["str->bool"]
        max_unescape_depth: 2
        anyof_strategy: "first-pass"
      reasoning_precheck:
        enabled: ENABLED
        validator_agent: agents.plan_checker   # optional
        max_tokens: 200                        # budget cap for the precheck
        score_threshold: 0.7                   # optional scoring gate
        required_context_keys: ["initial_input"]
        inject_feedback: "prepend"             # prepend | context_key | (unset)
        retry_guidance_prefix: "Guidance: "    # for prepend mode
        context_feedback_key: "_aros_retry_guidance"  # for context_key mode
steps:
  - {name: work, uses: agents.my_agent_step, config: {max_retries: 0}STEP}
"""


def seed(enabled="false", step=""):
    return SEED.replace("ENABLED", enabled).replace("STEP", step)


def test_the_seeds_own_block_repairs_as_it_says(ask, engine):
    """S1 §5.2: the conversions it allows are made, and told."""
    result = ask(seed(), '{"n": "3", "ok": "true"}')
    assert result.output == {"n": 3, "ok": True}
    assert "output.coercion.success" in [each.name for each in engine.story(result.run_id)]


def test_a_steps_own_processing_goes_before_its_agents(ask):
    """S1 §5.2: key by key: the step shuts the parser, the rest of the block stays."""
    text = seed(step=", processing: {aop: 'off'}")
    assert not ask(text, '{"n": "3"}').success
    block = Pipeline.from_yaml_text(text).steps[0].processing
    assert (block["aop"], block["coercion"]["max_unescape_depth"]) == ("off", 2)


def test_the_precheck_asks_the_documents_own_agent(ask, engine, server):
    """S1 §3.3: `validator_agent: agents.plan_checker`."""
    plan = {"plan": "first this, then that", "n": 3}
    text = seed("true").replace("additionalProperties: false", "additionalProperties: true")
    result = ask(
        text,
        Said(arguments='{"is_valid": true, "score": 0.9}'),
        json.dumps(plan),
        value="<thinking>first this, then that</thinking> go",
        context={"initial_input": "x"},
    )
    assert result.success, [step.feedback for step in result.step_history]
    assert "first this, then that" in json.dumps(server.requests[0].body["messages"])
    judged = [each.data for each in engine.story(result.run_id) if each.name == "aros.reasoning.precheck.pass"]
    assert [each["reason"] for each in judged] == ["validator"]


def test_the_fingerprint_knows_prompt_schema_and_processing():
    """A run in flight meets another agent never."""

    def fingerprint(text):
        return compile_plan(Pipeline.from_yaml_text(text)).nodes

    assert fingerprint(seed()) == fingerprint(seed())
    for old, new in (("aop: minimal", "aop: full"), ("type: integer", "type: number"), ("gpt-4o", "gpt-5")):
        assert fingerprint(seed()) != fingerprint(seed().replace(old, new))


FENCED = 'So:\n```json\n{"n": 4}\n```'
BROKEN = "{n: 4,}"
READ = """
agents: {w: {model: openai-chat:gpt-4o}}
steps:
  - name: a
    uses: agents.w
    config: {max_retries: 0}
    processing: {structured_output: "off", schema: {type: object, required: [n]}MORE}
"""


@pytest.mark.parametrize(
    ("project", "step", "reads"),
    [
        ({}, "", [FENCED]),
        ({"enable_aop_default": "off"}, "", []),
        ({"enable_aop_default": "full", "coercion_tolerant_level": 1}, "", [FENCED, BROKEN]),
        ({"enable_aop_default": "off", "coercion_tolerant_level": 1}, ", aop: full", [FENCED, BROKEN]),
        ({"enable_aop_default": "full", "coercion_tolerant_level": 1}, ", aop: minimal", [FENCED]),
        ({"enable_aop_default": "full", "coercion_tolerant_level": 1}, ", aop: 'off'", []),
    ],
)
def test_a_step_goes_before_the_project_and_that_before_what_is_built_in(server, project, step, reads):
    """M-149: what is not said in the step's block is as `[aros]` says, else as built in; shown by the answers that are read."""
    read = []
    for answer in (FENCED, BROKEN):
        server.answers = [answer]
        with LocalEngine(Settings.model_validate({"aros": project} if project else {})) as engine:
            result = engine.run(Pipeline.from_yaml_text(READ.replace("MORE", step)), "x")
        if result.unchecked().output == {"n": 4}:
            read.append(answer)
    assert read == reads


@pytest.mark.parametrize(
    "wrong", [{"enable_aop_default": "some"}, {"enable_aop": "full"}, {"coercion_tolerant_level": 3}]
)
def test_a_wrong_project_default_is_refused_with_its_key(wrong):
    """M-149: invalid configuration."""
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        Settings.model_validate({"aros": wrong})
