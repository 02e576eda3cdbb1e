"""AROS on a step, through the engine: what is read, reported, retried, and left unchanged (SYS-23, SYS-25)."""

import json
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, Field

from flujo_client import AgentProcessors, ConfigManager, Pipeline, PipelineContext, Step, StepConfig
from flujo_client.errors import PipelineAbortSignal
from flujo_worker.testing import LocalEngine
from tests.support.memory import asked

FENCED = 'Here it is:\n```json\n{"count": 3}\n```\nAnything else?'
SCHEMA = {"type": "object", "required": ["count"], "properties": {"count": {"type": "integer"}}}
TYPES = {"allow": {"integer": ["str->int"]}}


class Verdict(BaseModel):
    count: int


class Says:
    """An agent that says these texts, one after the other, and remembers what it received."""

    def __init__(self, *texts, output_type=str, name="says"):
        self.texts, self.output_type, self.name, self.told = list(texts), output_type, name, []

    async def run(self, data, guidance=None):
        self.told.append((data, guidance))
        return self.texts.pop(0)


def project(tmp_path, table):
    path = tmp_path / "flujo.toml"
    path.write_text(f"[aros]\n{table}")
    return ConfigManager(path, environ={}).settings()


def ran(engine, agent, block, *, value="go", context=None, **step):
    step.setdefault("config", StepConfig(max_retries=0))
    run = engine.enqueue(Pipeline([Step("judge", agent, processing=block, **step)]), value, context=context)
    engine.drain()
    return run, engine.result(run)


def events(engine, run, *prefixes):
    prefixes = prefixes or ("aros.", "output.", "grammar.", "reasoning.")
    return [(event.name, event.data) for event in engine.story(run) if event.name.startswith(prefixes)]


def names(engine, run):
    return [name for name, _ in events(engine, run)]


def test_a_fenced_answer_is_handed_on_as_the_object_it_holds(engine):
    """M-107, M-196."""
    _, result = ran(engine, Says(FENCED), {"aop": "minimal", "schema": SCHEMA})
    assert result.output == {"count": 3}


def test_an_agents_declared_type_is_its_schema(engine):
    """M-101."""
    _, result = ran(engine, Says(FENCED, output_type=Verdict), {"aop": "minimal"})
    assert result.output == Verdict(count=3)


def test_data_are_converted_by_the_steps_schema(engine):
    """M-092: what a provider's client has decoded already."""
    block = {"aop": "minimal", "schema": SCHEMA, "coercion": TYPES}
    _, result = ran(engine, Says({"count": "3"}), block)
    assert result.output == {"count": 3}


ROUND: list[Any] = []
ROUND.append(ROUND)


@pytest.mark.parametrize(("odd", "why"), [(Decimal(1), "type Decimal is"), ({1, 2}, "type set is"), (ROUND, "ircular")])
def test_data_that_are_no_json_are_refused_in_the_words_of_a_wrong_shape(engine, odd, why):
    _, result = ran(engine, Says({"count": 3, "odd": odd}), {"aop": "minimal", "schema": SCHEMA})
    assert result.error.type_name == "AgentIOValidationError"
    assert "but is not JSON" in result.error.message
    assert why in result.error.message


MESSES = {
    "right": '{"count": 3}',
    "fenced": FENCED,
    "encoded": json.dumps('{"count": 3}'),
    "comma": '{"count": 3,}',
    "typed": '{"count": "3"}',
    "json5": "{count: 3 /* three */}",
    "missing comma": '{"name": "n" "count": 3}',
    "cut": '{"name": "n", "count": 3, "more": [1, 2',
    "prose": "I would say three.",
}
READS = {
    "off": {"right"},
    "minimal": {"right", "fenced", "encoded", "comma", "typed"},
    "full 0": {"right", "fenced", "encoded", "comma", "typed"},
    "full 1": {"right", "fenced", "encoded", "comma", "typed", "json5"},
    "full 2": {"right", "fenced", "encoded", "comma", "typed", "json5", "missing comma"},
}


@pytest.mark.parametrize("mess", MESSES)
@pytest.mark.parametrize("mode", READS)
def test_each_mode_reads_what_it_promises_and_no_more(engine, mode, mess):
    """M-102, C-06: mode by malformed sample."""
    aop, _, level = mode.partition(" ")
    block = {"aop": aop, "schema": SCHEMA, "coercion": {**TYPES, "tolerant_level": int(level or 2)}}
    _, result = ran(engine, Says(MESSES[mess]), block)
    if aop == "off":
        assert (result.success, result.output) == (True, MESSES[mess])
    else:
        assert result.success == (mess in READS[mode])
        assert not result.success or result.output["count"] == 3


def test_a_text_step_stays_text_whatever_the_project_says(tmp_path):
    """M-089: nothing is read where no JSON is expected."""
    with LocalEngine(project(tmp_path, 'enable_aop_default = "full"')) as engine:
        run, result = ran(engine, Says(FENCED), None)
        assert (result.output, names(engine, run)) == (FENCED, [])


def test_the_typed_fast_path_gives_the_same_and_falls_back(engine):
    """M-105."""
    block = {"aop": "minimal", "typed_fast_path": True}
    straight = ran(engine, Says('{"count": 3}', output_type=Verdict), block)[1]
    around = ran(engine, Says(FENCED, output_type=Verdict), block)[1]
    assert straight.output == around.output == Verdict(count=3)


def test_each_stage_that_acted_is_told_once_and_summed_up(engine):
    """M-158, M-159, M-161, C-07."""
    mess = '<think>hm</think>```json\n{"count": "3", "name": "n",}\n```'
    block = {"aop": "full", "schema": SCHEMA, "coercion": TYPES}
    run, _ = ran(engine, Says(mess), block)
    story = events(engine, run)
    stages = [data["stage"] for name, data in story if name == "output.coercion.success"]
    assert stages == ["extract", "syntactic", "semantic"]
    assert [name for name, _ in story if name.startswith("aros.aop")] == [
        "aros.aop.syntactic.success",
        "aros.aop.coercion.success",
    ]


def test_an_attempt_names_what_was_expected_and_what_came(engine):
    """M-158."""
    run, _ = ran(engine, Says(FENCED), {"aop": "minimal", "schema": SCHEMA})
    ((_, data),) = events(engine, run, "output.coercion.attempt")
    assert (data["stage"], data["expected_type"], data["actual_type"]) == ("extract", "object", "text")
    assert (data["agent"], data["reason"]) == ("says", "text around it")


def test_a_conversion_is_told_with_its_place(engine):
    """M-159."""
    run, _ = ran(engine, Says('{"count": "3"}'), {"aop": "minimal", "schema": SCHEMA, "coercion": TYPES})
    ((_, data),) = events(engine, run, "output.coercion.success")
    assert data["transforms"] == ["str->int"]
    assert data["conversions"][0] | {"pointer": "/count", "from": "3", "to": 3} == data["conversions"][0]


def test_the_chosen_branch_is_told(engine):
    """M-097."""
    schema = {"anyOf": [{"type": "integer"}, {"type": "boolean"}]}
    block = {
        "aop": "full",
        "schema": schema,
        "coercion": {"allow": {"integer": ["str->int"], "boolean": ["str->bool"]}},
    }
    run, result = ran(engine, Says('"1"'), block)
    ((_, data),) = events(engine, run, "output.coercion.success")
    assert (result.output, data["branch_index"], data["branch_choices"]) == (1, 0, {"": 0})


def test_a_tolerant_repair_shows_a_bounded_patch(engine):
    """M-087, M-090: with a figure for how much of it stayed."""
    mess = "{count: 3, name: '%s'}" % ("n" * 1000)
    run, _ = ran(engine, Says(mess), {"aop": "full", "schema": SCHEMA, "coercion": {"tolerant_level": 2}})
    data = next(data for _, data in events(engine, run) if "patch_preview" in data)
    preview = data["patch_preview"]
    assert 0.5 < data["similarity"] < 1
    assert set(preview) == {"before", "after"}
    assert all(0 < len(text) < 200 for text in preview.values())


def test_previews_hide_what_looks_like_a_secret(engine):
    """M-087: redacted."""
    mess = "{count: 3, key: 'sk-abcdefghijklmnopqrstuvwxyz123456'}"
    run, _ = ran(engine, Says(mess), {"aop": "full", "schema": SCHEMA, "coercion": {"tolerant_level": 2}})
    assert "abcdefghijklmnop" not in json.dumps([data for _, data in events(engine, run)])


def test_an_output_that_is_right_shows_no_intervention(engine):
    """M-167, M-195."""
    block = {"aop": "full", "structured_output": "off", "schema": SCHEMA}
    run, _ = ran(engine, Says('{"count": 3}'), block)
    assert names(engine, run) == []
    assert engine.history(run)[0].metadata == {}


def test_what_was_counted_stands_on_the_attempt(engine):
    """M-165, U-08: interventions are counted, attempts at them are not."""
    block = {"aop": "minimal", "structured_output": "off", "schema": SCHEMA, "coercion": TYPES}
    run, _ = ran(engine, Says('```json\n{"count": "3"}\n```'), block)
    metadata = engine.history(run)[0].metadata
    assert metadata["aros.coercion.total"] == 2
    assert (metadata["aros.coercion.stage.extract"], metadata["aros.coercion.stage.semantic"]) == (1, 1)
    assert metadata["aros.coercion.transforms"] == ["region", "str->int"]
    assert metadata["aros.agent_id"] == "says"


def test_a_failed_attempt_keeps_its_count(engine):
    """M-166: a failing stage never loses the span."""
    run, _ = ran(engine, Says("no idea"), {"aop": "minimal", "structured_output": "off", "schema": SCHEMA})
    assert engine.history(run)[0].metadata["aros.coercion.failed"] == 1


def test_what_cannot_be_read_is_never_a_success(engine):
    """M-107: the completion gate."""
    run, result = ran(engine, Says("no idea"), {"aop": "full", "schema": SCHEMA, "coercion": {"tolerant_level": 2}})
    assert (result.success, engine.stores.reads.read_run(run).status) == (False, "failed")


def test_the_next_attempt_is_told_what_was_wrong_and_the_one_after_it_is_not(engine):
    """C-02, M-051, M-067: path, expected and actual, once."""
    agent = Says('{"count": "three"}', '{"count": [3]}', '{"count": 3}')
    run, result = ran(engine, agent, {"aop": "minimal", "schema": SCHEMA}, config=StepConfig(max_retries=2))
    assert result.output == {"count": 3}
    first, second, third = (guidance for _, guidance in agent.told)
    assert first is None
    assert 'at /count: expected integer, found string "three"' in second
    assert "found array" in third
    assert "three" not in third
    assert [attempt.status for attempt in engine.history(run)] == ["failed", "failed", "succeeded"]


def test_guidance_is_bounded(engine):
    agent = Says('{"count": "%s"}' % ("x" * 100_000), '{"count": 3}')
    ran(engine, agent, {"aop": "minimal", "schema": SCHEMA}, config=StepConfig(max_retries=1))
    assert len(agent.told[1][1]) < 1500


def test_the_fault_names_its_class_and_its_rule(engine):
    """C-02: a shape failure is an agent's."""
    run, _ = ran(engine, Says('{"count": '), {"aop": "minimal", "schema": SCHEMA})
    fault = engine.history(run)[0].fault
    assert (fault.category, fault.type_name, fault.code) == ("agent", "AgentIOValidationError", "AGENT_IO_VALIDATION")
    assert "[cut]" in fault.message
    assert fault.retryable


class Noted(PipelineContext):
    marks: list[str] = Field(default_factory=list)


def test_a_refused_attempt_leaves_no_trace_in_the_context(engine):
    """M-043, M-100: attempt 1 writes and fails, attempt 2 sees the pristine context."""
    seen = []

    def agent(_data, *, context):
        seen.append(list(context.marks))
        context.marks.append("mine")
        return "no idea" if len(seen) == 1 else '{"count": 3}'

    step = Step("judge", agent, processing={"aop": "minimal", "schema": SCHEMA}, config=StepConfig(max_retries=1))
    run = engine.enqueue(Pipeline([step], context_model=Noted), "go")
    engine.drain()
    assert seen == [[], []]
    assert engine.result(run).final_pipeline_context.marks == ["mine"]


def test_control_flow_is_no_shape(engine):
    """M-042."""

    def agent(_data) -> Verdict:
        raise PipelineAbortSignal("stop here")

    run, result = ran(engine, agent, {"aop": "full"})
    assert (result.success, engine.history(run)[0].fault.type_name) == (False, "PipelineAbortSignal")


def test_the_users_processors_get_what_aros_made(engine):
    """M-049, M-091."""
    got = []

    def keep(data, context=None):
        got.append(data)
        return {**data, "seen": True}

    block = {"aop": "minimal", "schema": SCHEMA}
    run, result = ran(engine, Says(FENCED), block, processors=AgentProcessors(output_processors=[keep]))
    assert (got, result.output) == ([{"count": 3}], {"count": 3, "seen": True})
    assert events(engine, run)[-1][1] | {"stage": "custom", "transforms": ["keep"]} == events(engine, run)[-1][1]


def test_prompt_processors_come_before_the_agent(engine):
    agent = Says("fine")
    ran(engine, agent, None, processors=AgentProcessors(prompt_processors=[lambda data, context=None: data.upper()]))
    assert agent.told[0][0] == "GO"


def test_a_processor_that_raises_fails_the_attempt_and_is_tried_again(engine):
    """Requirements §2.5; M-099."""
    calls = []

    class Flaky:
        async def process(self, data, context=None):
            calls.append(data)
            if len(calls) == 1:
                raise ValueError("not today")
            return data

    processors = AgentProcessors(output_processors=[Flaky()])
    _, result = ran(engine, Says("one", "two"), None, processors=processors, config=StepConfig(max_retries=1))
    assert (calls, result.output) == (["one", "two"], "two")


@pytest.mark.parametrize(
    ("text", "schema", "event", "passes"),
    [
        ('{"count": 3}', SCHEMA, "grammar.enforce.pass", True),
        (FENCED, SCHEMA, "grammar.enforce.fail", False),
        ('{"count": 3} ' + " " * 200_000, SCHEMA, "grammar.enforce.skipped", True),
    ],
)
def test_an_enforced_grammar_judges_the_text_as_it_came(engine, text, schema, event, passes):
    """M-073, C-09, M-164."""
    block = {"structured_output": "outlines", "enforce_grammar": True, "aop": "full", "schema": schema}
    run, result = ran(engine, Says(text), block)
    assert result.success == passes
    assert event in names(engine, run)


@pytest.mark.parametrize("more", [{"aop": "off"}, {"typed_fast_path": True}])
def test_a_grammar_is_enforced_whatever_else_is_off(engine, more):
    """C-09: if and only if it is asked for."""
    block = {"structured_output": "off", "enforce_grammar": True, **more}
    _, result = ran(engine, Says(FENCED, output_type=Verdict), block)
    assert not result.success


SHADOWS = [FENCED, '{"count": 3}', '{"count": "3"}', "no idea", "{count: 3}"]


@pytest.mark.parametrize("text", SHADOWS)
def test_shadow_mode_changes_nothing(engine, text):
    """M-204, C-41: byte-identical to AOP off."""
    agents = Says(text, output_type=Verdict), Says(text, output_type=Verdict)
    off = ran(engine, agents[0], {"aop": "off", "structured_output": "off"})[1]
    shadow = ran(engine, agents[1], {"aop": "full", "structured_output": "off", "shadow": True})[1]
    assert (shadow.success, shadow.output) == (off.success, off.output)


def test_shadow_mode_tells_what_it_would_have_done(engine):
    """M-204: events present, marked, and counted apart."""
    run, _ = ran(
        engine, Says(FENCED, output_type=Verdict), {"aop": "minimal", "shadow": True, "structured_output": "off"}
    )
    story = events(engine, run)
    assert "output.coercion.success" in [name for name, _ in story]
    assert all(data["shadow"] for _, data in story)
    metadata = engine.history(run)[0].metadata
    assert metadata["aros.shadow.coercion.total"] == 1
    assert "aros.coercion.total" not in metadata


def test_shadow_mode_says_what_the_next_level_would_read(engine):
    """Evidence for raising a level, to be compared with what the retry gives."""
    block = {"aop": "full", "shadow": True, "schema": SCHEMA, "coercion": {"tolerant_level": 0}}
    run, _ = ran(engine, Says("{count: 3}"), block)
    ((_, data),) = events(engine, run, "output.coercion.fail")
    assert (data["next_level"]["tolerant_level"], data["next_level"]["ok"]) == (1, True)


def golden(engine, run):
    """A run's trace, without what is different in every run."""
    return (
        [(event.name, event.level, event.data) for event in engine.story(run)],
        [(row.step, row.number, row.status, row.metadata, row.output) for row in engine.history(run)],
    )


OFF = {"aop": "off", "structured_output": "off"}
MINIMAL = {"aop": "minimal", "structured_output": "off"}


@pytest.mark.parametrize(("block", "text"), [(OFF, FENCED), (OFF, '{"count": 3}'), (MINIMAL, '{"count": 3}')])
def test_off_always_and_minimal_on_correct_output_leave_the_trace_as_it_was(engine, block, text):
    """M-166, M-199, M-209."""
    output_type = Verdict if block is MINIMAL else str
    legacy = golden(engine, ran(engine, Says(text), None)[0])
    now = golden(engine, ran(engine, Says(text, output_type=output_type), block)[0])
    assert now[0] == legacy[0]
    assert [row[:4] for row in now[1]] == [row[:4] for row in legacy[1]]
    assert block is MINIMAL or now == legacy


def test_the_master_switch_leaves_the_trace_as_it_was(tmp_path):
    """M-130, M-199."""
    with LocalEngine(project(tmp_path, "enabled = false")) as engine:
        legacy = golden(engine, ran(engine, Says(FENCED), None)[0])
        assert golden(engine, ran(engine, Says(FENCED), {"aop": "full", "schema": SCHEMA})[0]) == legacy


def test_a_runs_table_is_the_one_it_was_enqueued_with(tmp_path):
    """M-149: the values travel with the run; a worker's own file does not count."""
    with LocalEngine(project(tmp_path, 'enable_aop_default = "minimal"\nstructured_output_default = "off"')) as engine:
        run = engine.enqueue(Pipeline([Step("judge", Says(FENCED, output_type=Verdict))]), "go")
        engine.settings = engine.settings.model_copy(update={"aros": type(engine.settings.aros)()})
        engine.drain()
        assert engine.result(run).output == Verdict(count=3)


def test_the_ledger_keeps_accepted_repairs_when_the_project_asks(tmp_path):
    """M-137, M-178."""
    with LocalEngine(project(tmp_path, "correction_ledger_enabled = true")) as engine:
        run, _ = ran(engine, Says(FENCED), {"aop": "minimal", "schema": SCHEMA})
        (row,) = asked(engine.stores).read_corrections(run)
        assert (row.correction.step_name, row.correction.stage, row.correction.transforms) == (
            "judge",
            "extract",
            ("region",),
        )
        assert len(row.correction.schema_hash) == 64


def test_no_ledger_unless_asked(engine):
    """M-137."""
    run, _ = ran(engine, Says(FENCED), {"aop": "minimal", "schema": SCHEMA})
    assert asked(engine.stores).read_corrections(run) == []


PLANNED = "<thinking>guess</thinking> How many?"


def doubts(_plan, max_tokens=None):
    return {"passed": False, "score": 0.2, "feedback": f"look it up, in {max_tokens} tokens"}


def prechecked(**more):
    return {"structured_output": "off", "reasoning_precheck": {"enabled": True, "validator_agent": doubts, **more}}


def test_a_failed_precheck_tells_and_continues(engine):
    """M-110, M-120, M-123: telemetry only, nothing injected."""
    agent = Says("three")
    run, result = ran(engine, agent, prechecked(), value=PLANNED)
    assert (result.output, agent.told[0][0]) == ("three", PLANNED)
    assert names(engine, run) == ["reasoning.validation", "aros.reasoning.precheck.fail"]
    assert engine.history(run)[0].metadata["aros.precheck.fail"] == 1


def test_feedback_is_prepended_when_asked_for(engine):
    """M-116, M-121: with the seed's prefix; max_tokens really sent."""
    agent = Says("three")
    ran(engine, agent, prechecked(inject_feedback="prepend", max_tokens=50), value=PLANNED)
    assert agent.told[0][0].startswith("Guidance: ")
    assert "look it up, in 50 tokens" in agent.told[0][0]
    assert agent.told[0][0].endswith(PLANNED)


def test_feedback_under_a_context_key_is_seen_and_not_kept(engine):
    """M-122."""
    seen = []

    def agent(_data, *, context):
        seen.append(context._aros_retry_guidance)
        context.marks.append("here")
        return "three"

    block = prechecked(inject_feedback="context_key")
    run = engine.enqueue(Pipeline([Step("judge", agent, processing=block)], context_model=Noted), PLANNED)
    engine.drain()
    context = engine.result(run).final_pipeline_context
    assert "look it up" in seen[0]
    assert context.marks == ["here"]
    assert "_aros_retry_guidance" not in context.model_dump_json()


def test_a_failed_attempt_hands_its_prechecks_feedback_on(engine):
    """C-03, M-126, M-198: whatever inject_feedback says."""
    agent = Says("no idea", '{"count": 3}')
    block = {**prechecked(), "aop": "minimal", "schema": SCHEMA}
    _, result = ran(engine, agent, block, value=PLANNED, config=StepConfig(max_retries=1))
    assert result.output == {"count": 3}
    assert "no JSON value found" in agent.told[1][1]
    assert "look it up" in agent.told[1][1]


def test_without_a_plan_the_precheck_is_skipped_and_the_prompt_is_as_it_was(engine):
    """M-114: also when the attempt fails."""
    agent = Says("no idea")
    block = {**prechecked(inject_feedback="prepend"), "aop": "minimal", "schema": SCHEMA}
    run, _ = ran(engine, agent, block)
    assert agent.told[0][0] == "go"
    assert ("aros.reasoning.precheck.skipped", "no_plan") in [
        (name, data.get("reason")) for name, data in events(engine, run)
    ]


def test_a_plan_in_the_models_own_text_is_judged_after_it(engine):
    """C-33: an early short pass."""
    agent = Says('<thinking>count them</thinking>{"count": 3}')
    block = {**prechecked(), "aop": "minimal", "schema": SCHEMA}
    run, result = ran(engine, agent, block)
    assert result.output == {"count": 3}
    assert "aros.reasoning.precheck.fail" in names(engine, run)


def test_the_first_gate_knows_the_schema_of_the_agents_type(engine):
    """M-111: a plan that lacks what the type requires is not worth a validator."""
    judge = Says((True, ""))
    block = {"reasoning_precheck": {"enabled": True, "validator_agent": judge}}
    run, result = ran(engine, Says(FENCED, output_type=Verdict), block, value='<thinking>{"total": 3}</thinking> go')
    assert result.success, result.error
    assert judge.told == []
    ((_, data),) = events(engine, run, "aros.reasoning.")
    assert (data["reason"], data["keys"]) == ("missing_basics", ["count"])
