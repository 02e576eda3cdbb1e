"""A step's `processing` block and the project's `[aros]` table: defaults, precedence, the gate, what is refused (SYS-25)."""

import pytest

from flujo_client import ConfigManager, Pipeline, Step
from flujo_client.contract.processing import ProcessingConfigModel, resolve
from flujo_client.errors import BlueprintError, PipelineError, SettingsError
from flujo_client.pipeline.check import check
from flujo_client.pipeline.compile import compile_plan

PRECHECK = "reasoning_precheck"


def agent(text):
    return text


def config(tmp_path, text):
    path = tmp_path / "flujo.toml"
    path.write_text(text)
    return ConfigManager(path, environ={}).settings()


def test_without_a_block_and_a_table_aros_does_nothing():
    """C-05, M-207."""
    assert resolve(None, None) is None


def test_inside_the_gate_the_seeds_defaults_fill_what_is_missing():
    """C-05, M-130 to M-147, M-205."""
    made = resolve({}, None)
    assert (made.structured_output, made.parsing.aop, made.parsing.tolerant_level) == ("auto", "minimal", 0)
    assert (made.parsing.max_unescape_depth, made.parsing.anyof_strategy) == (2, "first-pass")
    assert (made.schema, made.enforce_grammar, made.shadow, made.typed_fast_path, made.ledger) == (
        None,
        False,
        False,
        False,
        False,
    )
    wanted = made.precheck
    assert (wanted.enabled, wanted.max_tokens, wanted.score_threshold) == (False, 200, 0.7)
    assert (wanted.inject_feedback, wanted.retry_guidance_prefix) == (None, "Guidance: ")
    assert wanted.context_feedback_key == "_aros_retry_guidance"


def test_a_table_alone_opens_the_gate_for_every_step():
    """C-05."""
    assert resolve(None, {"enabled": True}).parsing.aop == "minimal"


def test_the_master_switch_closes_it_whatever_a_step_says():
    """M-130."""
    assert resolve({"aop": "full"}, {"enabled": False}) is None


TABLE = {
    "structured_output_default": "off",
    "enable_aop_default": "full",
    "coercion_tolerant_level": 1,
    "max_unescape_depth": 3,
    "max_steps": 9,
    "enable_reasoning_precheck": True,
    "shadow_mode": True,
}


def test_the_table_stands_over_what_is_built_in():
    """M-131 to M-138, M-149."""
    made = resolve(None, TABLE)
    assert (made.structured_output, made.parsing.aop, made.parsing.tolerant_level) == ("off", "full", 1)
    assert (made.parsing.max_unescape_depth, made.precheck.enabled, made.shadow) == (3, True, True)


@pytest.mark.parametrize(
    ("block", "read"),
    [
        ({"structured_output": "auto"}, lambda made: made.structured_output == "auto"),
        ({"aop": "off"}, lambda made: made.parsing.aop == "off"),
        ({"coercion": {"tolerant_level": 2}}, lambda made: made.parsing.tolerant_level == 2),
        ({"coercion": {"max_unescape_depth": 0}}, lambda made: made.parsing.max_unescape_depth == 0),
        ({"coercion": {"max_steps": 8}}, lambda made: made.parsing.max_steps == 8),
        ({PRECHECK: {"enabled": False}}, lambda made: made.precheck.enabled is False),
        ({"shadow": False}, lambda made: made.shadow is False),
    ],
)
def test_a_step_stands_over_the_table_key_by_key(block, read):
    """M-047, M-149: the other keys keep the table's values."""
    made = resolve(block, TABLE)
    assert read(made)
    assert (
        sum(
            (
                made.structured_output == "off",
                made.parsing.aop == "full",
                made.parsing.tolerant_level == 1,
                made.parsing.max_unescape_depth == 3,
                made.parsing.max_steps == 9,
                made.precheck.enabled is True,
                made.shadow is True,
            )
        )
        == len(TABLE) - 1
    )


def test_the_ledger_is_the_projects_to_turn_on():
    """M-137."""
    assert resolve({}, {"correction_ledger_enabled": True}).ledger is True


def test_structured_output_is_case_insensitive():
    """M-063."""
    assert ProcessingConfigModel.read({"structured_output": "OpenAI_JSON"}).structured_output == "openai_json"


def test_agent_is_another_name_of_the_validator_agent():
    """M-145."""
    assert ProcessingConfigModel.read({PRECHECK: {"agent": "acme:judge"}}).precheck.validator_agent == "acme:judge"


@pytest.mark.parametrize(
    ("block", "named", "way_out"),
    [
        ({"structured_output": "openai"}, "processing.structured_output: 'openai'", "'openai_json'"),
        ({"structured_output": 1}, "processing.structured_output: 1", ""),
        ({"structured_outputs": "auto"}, "unknown key 'structured_outputs'", "'structured_output'"),
        ({"enforce_grammar": "yes"}, "processing.enforce_grammar: 'yes'", "true or false"),
        ({"shadow": 1}, "processing.shadow: 1", "true or false"),
        ({"typed_fast_path": "on"}, "processing.typed_fast_path: 'on'", "true or false"),
        ({"schema": "object"}, "processing.schema: expected a JSON Schema", "object"),
        ({PRECHECK: True}, "processing.reasoning_precheck: expected a table", "enabled"),
        ({PRECHECK: {"max_token": 5}}, "unknown key 'max_token'", "'max_tokens'"),
        ({PRECHECK: {"enabled": "yes"}}, "reasoning_precheck.enabled: 'yes'", "true or false"),
        ({PRECHECK: {"max_tokens": 0}}, "reasoning_precheck.max_tokens: 0", "1 or more"),
        ({PRECHECK: {"score_threshold": 1.5}}, "reasoning_precheck.score_threshold: 1.5", "0 to 1"),
        ({PRECHECK: {"timeout_s": -1}}, "reasoning_precheck.timeout_s: -1", "0 or more"),
        ({PRECHECK: {"inject_feedback": "append"}}, "inject_feedback: 'append'", "'prepend'"),
        ({PRECHECK: {"required_context_keys": "topic"}}, "required_context_keys: expected a list", "["),
        ({PRECHECK: {"required_context_keys": [1]}}, "required_context_keys: 1", "text"),
        ({PRECHECK: {"delimiters": ["<plan>"]}}, "delimiters", '["<plan>", "</plan>"]'),
        ({PRECHECK: {"consensus_samples": 9}}, "consensus_samples: 9", "2 to 5"),
        ({PRECHECK: {"consensus_threshold": "high"}}, "consensus_threshold: 'high'", "0 to 1"),
        ({PRECHECK: {"retry_guidance_prefix": 1}}, "retry_guidance_prefix: 1", "text"),
        ({PRECHECK: {"agent": "a:b", "validator_agent": "a:c"}}, "reasoning_precheck.agent", "validator_agent"),
    ],
)
def test_a_wrong_key_or_value_is_refused_where_the_step_is_written(block, named, way_out):
    """M-148, U-10: at once, naming the step, the key, and what to write."""
    with pytest.raises(BlueprintError) as caught:
        Step("judge", agent, processing=block)
    assert caught.value.message.startswith("step 'judge': ")
    assert named in caught.value.message
    assert way_out in (caught.value.suggestion or "")


def test_the_block_may_stand_in_meta_as_the_seed_has_it():
    """S1 §5.2: step.meta["processing"]."""
    step = Step("judge", agent, meta={"processing": {"aop": "full"}, "owner": "ana"})
    assert step.processing == {"aop": "full"}
    assert step.meta == {"owner": "ana"}


def test_two_blocks_are_one_too_many():
    with pytest.raises(BlueprintError, match="given twice, as an argument and in `meta`"):
        Step("judge", agent, processing={}, meta={"processing": {}})


def test_an_agent_named_in_the_block_is_looked_up_at_enqueue():
    """M-115, M-148: not at step seven."""
    step = Step("judge", agent, processing={PRECHECK: {"validator_agent": "nowhere.at_all:judge"}})
    with pytest.raises(PipelineError, match=r"reasoning_precheck\.validator_agent: .*nowhere"):
        check(Pipeline([step]), allowed=["*"])


def test_a_schema_that_is_none_is_refused_at_enqueue():
    """M-148."""
    step = Step("judge", agent, processing={"schema": {"type": "objekt"}})
    with pytest.raises(PipelineError, match=r"processing\.schema is not a JSON Schema"):
        check(Pipeline([step]), allowed=["*"])


def test_the_block_is_part_of_the_fingerprint():
    """M-047: a run is carried on only by workers whose code has the same block."""
    plans = [
        compile_plan(Pipeline([Step("judge", agent, processing=block)], name="p")).fingerprint
        for block in (None, {}, {"aop": "full"}, {PRECHECK: {"validator_agent": agent}})
    ]
    assert len(set(plans)) == len(plans)


def test_a_project_without_the_table_has_none(tmp_path):
    """C-05."""
    assert config(tmp_path, "").aros.table() is None


@pytest.mark.parametrize("text", ["[aros]", "[aros]\nenabled = true"])
def test_a_written_table_is_one_even_if_it_says_nothing(tmp_path, text):
    """M-150, U-07: the table really is read."""
    table = config(tmp_path, text).aros.table()
    assert (table["enabled"], table["enable_aop_default"], table["correction_ledger_enabled"]) == (
        True,
        "minimal",
        False,
    )


def test_what_the_table_says_is_what_comes_of_it(tmp_path):
    """M-150: changing the file changes behaviour."""
    table = config(tmp_path, '[aros]\nenable_aop_default = "full"\ncoercion_tolerant_level = 2').aros.table()
    assert resolve(None, table).parsing.level == 2


def test_the_environment_stands_over_the_file(tmp_path):
    path = tmp_path / "flujo.toml"
    path.write_text("[aros]\nshadow_mode = false")
    assert ConfigManager(path, environ={"FLUJO_AROS_SHADOW_MODE": "true"}).settings().aros.shadow_mode is True


def test_a_table_no_one_wrote_stays_unwritten_for_child_processes(tmp_path):
    """C-05: what is exported to workers must not turn AROS on."""
    settings = config(tmp_path, "").with_services("postgresql://h/d", "redis://h/0")
    assert settings.aros.table() is None
    assert not [name for name in settings.as_environment() if name.startswith("FLUJO_AROS_")]


def test_a_written_table_reaches_child_processes(tmp_path):
    settings = config(tmp_path, "[aros]").with_services("postgresql://h/d", "redis://h/0")
    assert ConfigManager(tmp_path / "flujo.toml", environ=settings.as_environment()).settings().aros.table() is not None


@pytest.mark.parametrize(
    ("line", "named", "way_out"),
    [
        ('enable_aop_default = "ful"', "aros.enable_aop_default: Input should be 'off', 'minimal' or 'full'", "'full'"),
        ('structured_output_default = "outlines"', "'off', 'auto' or 'openai_json'", ""),
        ("coercion_tolerant_level = 3", "aros.coercion_tolerant_level", ""),
        ("coercion_tolerant_level = true", "must be a whole number", ""),
        ("max_unescape_depth = -1", "aros.max_unescape_depth", ""),
        ('anyof_strategy = "best"', "aros.anyof_strategy: Input should be 'first-pass'", ""),
        ("enabel = true", "aros.enabel: unknown key", "aros.enabled"),
    ],
)
def test_a_wrong_key_of_the_table_is_refused_with_the_way_out(tmp_path, line, named, way_out):
    """M-148, U-07: the key, the allowed values, the nearest name."""
    with pytest.raises(SettingsError) as caught:
        config(tmp_path, f"[aros]\n{line}")
    assert named in caught.value.message
    assert way_out in (caught.value.suggestion or "")
