"""The documents' examples of AROS do what their pages say, and no key of a `processing` block is without one (M-151, M-210)."""

import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from examples import invoice, rollout
from flujo_client import Pipeline
from flujo_client.config.models import Aros
from flujo_client.contract import processing as contract
from flujo_client.contract.processing import PrecheckSettings, ProcessingConfigModel, ProcessingSettings
from flujo_worker.aros import outcome as outcomes
from flujo_worker.aros import parse, prepare
from tests.support.fleet import STEADY
from tests.support.page_module import page_module

# One worker that finds the examples.
pytestmark = pytest.mark.site(worker=STEADY, workers=1, code=".")

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference/aros.md").read_text(encoding="utf-8")
processing, reading = (page_module("reference/aros.md", name) for name in ("processing.py", "reading.py"))
STEPS = [step for step in vars(processing).values() if type(step).__name__ == "Step"]


FENCED, LOOSE, QUOTED = (
    '```json\n{"weight": 2.5, "to": "Bern"}\n```',
    "{weight: 2.5, to: 'Bern'}",
    '{"weight": "2.5", "to": "Bern"}',
)


def run(engine, step, value, **options):
    run = engine.enqueue(step if isinstance(step, Pipeline) else Pipeline([step]), value, **options)
    engine.drain()
    return run, engine.result(run)


def event_data(engine, run, name):
    return [event.data for event in engine.story(run) if event.name == name]


@pytest.mark.parametrize(("pipeline", "attempts"), [("plain", 2), ("repaired", 2), ("converted", 1)])
def test_an_untidy_invoice_is_read(engine, pipeline, attempts):
    """M-196: what is listed is converted, what is not is asked again."""
    _, result = run(engine, getattr(invoice, pipeline), "R-17")
    assert result.output == invoice.Invoice(number="R-17", total=80.5, paid=True)
    assert result.step_history[0].attempts == attempts


TRACES = re.findall(
    r"^```text\n(.*?)^```", (DOCS / "tutorial/aros-on-one-step.md").read_text(), re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize(("pipeline", "trace"), [*zip(("plain", "repaired", "converted"), TRACES, strict=True)])
def test_the_tutorials_traces_are_those_of_its_first_attempts(engine, pipeline, trace):
    """M-158 to M-161: the same events, and of each the same words."""
    id_, _ = run(engine, getattr(invoice, pipeline), "R-17")
    first = [event for event in engine.story(id_) if (event.attempt or "").endswith(":1")]
    assert re.findall(r"\+\d\S* m?s  ([\w.]+)", trace) == [event.name for event in first]


def test_an_order_is_read_by_every_key_of_the_parser(engine):
    """M-102, M-142: JSON5, and each kind of conversion."""
    id_, result = run(engine, processing.read_order, "go")
    assert result.output == {
        "id": 7,
        "count": 3,
        "price": 2.5,
        "paid": True,
        "tags": ["gift"],
        "address": {"city": "Bern"},
    }
    assert event_data(engine, id_, "output.coercion.success")[-1]["branch_choices"] == {"/id": 0}


def test_your_own_processors_get_what_only_the_schema_refuses(engine):
    """M-049, M-099."""
    assert run(engine, processing.priced, "go")[1].output == {"id": 7, "count": 1, "price": 3.5}


@pytest.mark.parametrize("text", ['{"count": 3}', '```json\n{"count": 3}\n```'])
def test_the_typed_fast_path_gives_the_same(engine, text):
    """M-105."""
    assert run(engine, processing.counted, text)[1].output == processing.Count(count=3)


def test_an_enforced_grammar_takes_only_what_holds_as_it_came(engine):
    """C-09, M-073."""
    assert run(engine, processing.strict, '{"count": 3}')[1].success
    assert not run(engine, processing.strict, 'So: {"count": 3}')[1].success


def test_what_is_watched_stays_as_it_was(engine):
    """M-204."""
    id_, result = run(engine, processing.watched, "{count: 3}")
    assert result.output == "{count: 3}"
    assert event_data(engine, id_, "output.coercion.fail")[0]["next_level"]["ok"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("<plan>read the invoice</plan>", "<plan>read the invoice</plan>"),
        (
            "<plan>have a look</plan>",
            "Mind this: the plan scored 0.2, at least 0.7 is needed: say how this serves: pay\n\n<plan>have a look</plan>",
        ),
        ("no plan", "no plan"),
    ],
)
def test_a_plan_is_judged_before_the_agent_is_asked(engine, value, said):
    """M-113, M-117, M-118, M-121: two unlike samples ask the validator, whose score counts."""
    _, result = run(engine, processing.careful, value, context={"scratchpad": {"goal": "pay"}})
    assert result.output == said


def test_feedback_may_stand_in_the_context(engine):
    """M-112, M-122: for this attempt only."""
    _, result = run(engine, processing.hinted, "go", context={"scratchpad": {}})
    assert result.output == "the context lacks scratchpad.customer"
    assert not hasattr(result.final_pipeline_context, "hint")


def test_the_type_decides_unless_the_schema_is_to(engine):
    _, result = run(engine, processing.read_bill, "go")
    assert (result.output.total, result.output.payment.name) == (1200.0, "PAID")
    _, result = run(engine, processing.by_schema, "go")
    assert not result.success
    assert "/total" in result.error.message


def rows(heading, columns):
    """The rows of the table that has so many columns, as cells; without its head."""
    section = REFERENCE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line] for line in lines if len(line) == columns][1:]


def words(cell):
    return re.findall(r"`([^`]+)`", cell)


def keys_in(block):
    inside = {key: dict(block.get(key) or {}) for key in ("reasoning_precheck", "coercion")}
    return (block.keys() - inside.keys()) | {f"{key}.{name}" for key, table in inside.items() for name in table}


def names(kind):
    return {each.name for each in fields(kind)}


def known_keys():
    block = names(ProcessingConfigModel) - {"parsing", "precheck", "ledger"} | {"aop"}
    coercion = {f"coercion.{name}" for name in names(ProcessingSettings) - {"aop"}}
    return block | coercion | {f"reasoning_precheck.{name}" for name in names(PrecheckSettings)}


def test_no_key_is_without_an_example():
    shown = set().union(*(keys_in(step.processing) for step in STEPS))
    assert shown == known_keys() | {"reasoning_precheck.agent"}


def test_every_key_is_listed_with_its_default():
    listed = {words(key)[0]: default.strip("`") for key, default, *_ in rows("The `processing` options", 4)}
    assert listed == {key: written(default_of(key)) for key in known_keys()} | {
        "batch": "false"
    }  # not about the answer


def default_of(key):
    whole = ProcessingConfigModel()
    section, _, name = key.rpartition(".")
    parts = {"coercion": whole.parsing, "reasoning_precheck": whole.precheck}
    return getattr(whole.parsing if key == "aop" else parts.get(section, whole), name)


def written(default):
    if default is None or default in ({}, ()):
        return ""
    if isinstance(default, bool | tuple):
        return json.dumps(default)
    return str(default) if isinstance(default, str | int) else f"{default:g}"


def test_every_word_that_a_key_may_be_is_listed():
    allowed = {words(key)[0]: set(words(may)) for key, _, may, _ in rows("The `processing` options", 4)}
    assert allowed["structured_output"] == set(contract.STRUCTURED)
    assert allowed["aop"] == set(contract.MODES)
    assert allowed["reasoning_precheck.inject_feedback"] == set(contract.INJECTIONS)
    modes = [mode for first, _ in rows("Structured output", 2) for mode in words(first)]
    assert modes[: len(contract.STRUCTURED)] == list(contract.STRUCTURED)


def test_the_yaml_is_a_block_and_the_toml_is_the_defaults():
    """M-151: both are read by the code that reads yours."""
    (document,) = re.findall(r"^```yaml\n(.*?)^```", REFERENCE, re.MULTILINE | re.DOTALL)
    (table,) = re.findall(r"^```toml\n(.*?)^```", REFERENCE, re.MULTILINE | re.DOTALL)
    assert ProcessingConfigModel.read(yaml.safe_load(document)["agents"]["reader"]["processing"]).parsing.level == 1
    assert tomllib.loads(table)["aros"] == Aros().model_dump()


LEVELS = {"minimal": {"aop": "minimal"}} | {
    f"level {level}": {"aop": "full", "coercion": {"tolerant_level": level}} for level in (1, 2)
}


@pytest.mark.parametrize("row", rows("Accepted input", 5), ids=lambda row: row[0])
def test_each_text_is_read_or_refused_as_the_table_says(row):
    text, *cells, value = row
    for cell, settings in zip(cells, LEVELS.values(), strict=True):
        outcome = parse(words(text)[0], reading.ORDER, settings)
        assert outcome.ok == (cell == "yes"), (settings, outcome)
        assert outcome.value == json.loads(words(value)[0]) if outcome.ok else outcome.rule == words(cell)[0]


def test_each_refusal_says_what_the_table_says():
    for rule, _, text, said in rows("Rejected input", 4):
        if words(text):
            outcome = parse(words(text)[0], reading.ORDER, LEVELS["level 2"])
            assert (outcome.rule, outcome.feedback) == (words(rule)[0], said)
    assert parse("{}", {"type": "objct"}, {}).rule == "bad-schema"


def test_every_rule_is_listed():
    rules = {value for name, value in vars(outcomes).items() if name.isupper() and isinstance(value, str)}
    assert {words(row[0])[0] for row in rows("Rejected input", 4)} == rules


@pytest.mark.parametrize("row", rows("Conversions", 4), ids=lambda row: "".join(row[:2]))
def test_each_conversion_takes_and_leaves_what_the_table_says(row):
    (kind,), (conversion,), takes, leaves = map(words, row)
    schema = {"type": "object", "properties": {"v": {"type": kind}}}
    read = prepare(schema, {"aop": "full", "coercion": {"allow": {kind: [conversion]}}})
    taken = [read(f'{{"v": {value}}}') for value in takes]
    assert all(outcome.ok and outcome.transforms[-1].name == conversion for outcome in taken), taken
    assert [value for value in leaves if read(f'{{"v": {value}}}').ok] == []


def test_every_conversion_is_listed():
    listed = {(words(kind)[0], words(name)[0]) for kind, name, *_ in rows("Conversions", 4)}
    assert listed == {(kind, name) for kind, allowed in contract.CONVERSIONS.items() for name in allowed}


def test_every_event_of_aros_has_the_fields_of_its_row(engine):
    """M-155 to M-164: of what the examples tell, nothing is missing in the table."""
    page = (DOCS / "reference/events.md").read_text(encoding="utf-8")
    cells = [line.strip("|").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    fields_of = {name: words(row[2]) for row in cells if len(row) == 4 for name in words(row[0])}
    context = {"scratchpad": {"goal": "pay"}}
    for told_by in (*STEPS, invoice.repaired, invoice.converted, rollout.full):
        for text in (FENCED, "<plan>have a look</plan>", "{count: 3}"):
            id_, _ = run(engine, told_by, text, context=context)
            for event in engine.story(id_):
                if not event.name.startswith(("aros.", "output.", "grammar.", "reasoning.")):
                    continue
                known = {"agent", "model", "shadow", *fields_of[event.name]}
                assert event.data.keys() <= known, event


def test_the_library_reads_and_says_why_not():
    assert reading.read_once("{count: 3}") == {"count": 3}
    assert reading.read_once("none")[0] == "no-json"
    assert [reading.read_order(text).ok for text in ('{"count": "3"}', "none")] == [True, False]


@pytest.mark.parametrize(
    ("pipeline", "text", "output"),
    [
        ("watched", FENCED, FENCED),
        ("minimal", FENCED, {"weight": 2.5, "to": "Bern"}),
        ("minimal", LOOSE, None),
        ("full", LOOSE, {"weight": 2.5, "to": "Bern"}),
        ("full", QUOTED, {"weight": 2.5, "to": "Bern"}),
    ],
)
def test_more_is_read_with_each_stage_of_the_roll_out(engine, pipeline, text, output):
    """M-205: first only watched, then little, then more."""
    assert run(engine, getattr(rollout, pipeline), text)[1].unchecked().output == output


def test_what_was_refused_under_watch_says_whether_a_level_more_would_help(engine):
    """M-204."""
    said = {text: rollout.refused(engine.story(run(engine, rollout.watched, text)[0])) for text in (LOOSE, QUOTED)}
    assert said == {LOOSE: [("not-json", "", True)], QUOTED: [("not-whitelisted", "/weight", False)]}


@pytest.mark.acceptance
def test_the_pages_queries_count_what_was_seen(site):
    """M-178, M-204, M-205: what to look at while a step is watched."""
    for text in (FENCED, FENCED, LOOSE):
        site.client.enqueue("examples.rollout:watched", text).result(timeout=60).raise_for_status()
    page = (DOCS / "how-to/roll-out-aros.md").read_text(encoding="utf-8")
    found = [site.rows(query) for query in re.findall(r"^```sql\n(.*?)^```", page, re.MULTILINE | re.DOTALL)]
    assert found == [
        [{"step": "weigh", "model": "echo", "attempts": 3, "stages_that_acted": 2, "refused": 1}],
        [{"agent": "weigher", "rule": "not-json", "place": "", "refusals": 1, "next_level_reads": 1}],
        [{"transform": "region", "attempts": 2}],
    ]
