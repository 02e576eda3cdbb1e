"""Contexts that were written with another version of their model: read, migrated, or waited for; never failed, never half-moved."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys

import pytest
from pydantic import BaseModel

from flujo_client import ImportStep, Pipeline, Step
from flujo_client.errors import PipelineError
from flujo_client.pipeline.compile import compile_plan
from flujo_client.serial import encode
from flujo_worker.changed_code.context_migrations import may_be_other
from flujo_worker.domain.context_change import fields_of

SOURCE = """
from pydantic import BaseModel, Field

from flujo_client import HumanInTheLoopStep, LoopStep, ParallelStep, Pipeline, Step


class Order(BaseModel):
    title: str = "Emma"
    FIELDS


def write(data, *, context):
    WRITES
    return data


def read(data, *, context):
    return context.model_dump()


MIGRATIONS

pipeline = Pipeline(
    [Step("write", write), HumanInTheLoopStep("ask", "Go on?"), STEPS],
    name="orders",
    version="1",
    context_model=Order,
    context_migrations=FUNCTIONS,
)
"""
READ = 'Step("read", read)'


def orders(fields, *, writes="pass", migrations="", functions="{}", steps=READ):
    texts = {"FIELDS": fields, "WRITES": writes, "MIGRATIONS": migrations, "FUNCTIONS": functions, "STEPS": steps}
    source = SOURCE
    for name, text in texts.items():
        source = source.replace(name, text)
    return source


OLD = orders('price: int = 3\n    note: str = ""', writes='context.note = "signed"')
TO_CENTS = 'def to_cents(old):\n    return {"title": old["title"], "cents": old["price"] * 100}'


@pytest.fixture
def deploy(tmp_path, monkeypatch):
    """Import a text as the module `orders_app`, as a new worker does."""
    made = []

    def imported(text):
        path = tmp_path / f"{len(made)}.py"
        made.append(path)
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("orders_app", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "orders_app", module)
        spec.loader.exec_module(module)
        return module.pipeline

    return imported


@pytest.fixture
def run(engine, deploy):
    """A run of the old model, which waits for a person; the context has all its fields."""
    run = engine.enqueue(deploy(OLD), "in")
    engine.drain()
    assert engine.stores.reads.read_run(run).context.tree()["v"] == {"title": "Emma", "price": 3, "note": "signed"}
    return run


def go_on(engine, run, pipeline, step=""):
    """Deploy and answer, unless `step` is None; workers that have only the new code carry the run on."""
    reference = engine.stores.reads.read_run(run).reference
    entry = engine._local._entries[engine._local.put(pipeline)]
    assert entry.plan.fingerprint == engine.stores.reads.read_run(run).fingerprint, "the fingerprint leaves it out"
    engine._local._entries[reference] = entry
    for resolve in (engine.attempts._outcomes._resolve, engine.attempts.preparation.migrations._bench.resolve):
        resolve._found.clear()
    if step is not None:
        engine.answer(run, "yes", step=step or engine.approvals(run)[0].step)


def output(engine, run):
    record = engine.stores.reads.read_run(run)
    assert record.status == "succeeded", record.reason
    return engine.result(run).output


def parked(engine, run):
    """Tell why the run is parked; nothing of it has moved."""
    record = engine.stores.reads.read_run(run)
    assert record.status == "parked"
    assert record.context.tree()["v"]["price"] == 3
    assert [each.status for each in engine.stores.reads.read_attempts(run)][-1] == "ready"
    assert (record.parked["kind"], record.parked["what"]) == ("code", record.reason)
    return record.reason


def test_a_field_that_is_added_with_a_default_is_read(engine, run, deploy):
    go_on(engine, run, deploy(orders('price: int = 3\n    note: str = ""\n    copies: int = 1')))
    assert output(engine, run) == {"title": "Emma", "price": 3, "note": "signed", "copies": 1}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ("price: int = 3", "field 'note' was removed"),
        ('price: str = "3"\n    note: str = ""', "field 'price' was int and is str now"),
        ('price: int = 3\n    note: str = ""\n    copies: int', "field 'copies' was added without a default"),
    ],
)
def test_without_a_function_the_run_is_parked_with_the_reason(engine, run, deploy, fields, why):
    go_on(engine, run, deploy(orders(fields)))
    reason = parked(engine, run)
    assert f"its context does not fit Order: {why}" in reason
    assert "context_migrations" in reason


@pytest.mark.parametrize(
    ("fields", "migration", "found"),
    [
        ('price: int = 3\n    note: str = ""', "", {"title": "Emma", "price": 3, "note": "signed"}),
        ("price: int = 3", "", "field 'note' was removed"),
        ('price: str = "3"\n    note: str = ""', "", "field 'price' was of another type and is str now"),
        ("cents: int = 0", TO_CENTS, {"title": "Emma", "cents": 300}),
    ],
)
def test_a_model_with_another_name_is_read_if_its_fields_fit(engine, deploy, fields, migration, found):
    """The class that the stored context names is gone."""
    old = deploy(OLD)
    run = engine.enqueue(old, "in")
    engine.drain()
    functions = '{"1": to_cents}' if migration else "{}"
    engine.deploy(old, deploy(orders(fields, migrations=migration, functions=functions).replace("Order", "Purchase")))
    for resolve in (engine.attempts._outcomes._resolve, engine.attempts.preparation.migrations._bench.resolve):
        resolve._found.clear()
    engine.answer(run, "yes")
    if isinstance(found, str):
        assert f"its context does not fit Purchase: {found}" in parked(engine, run)
        return
    assert output(engine, run) == found
    assert engine.stores.reads.read_run(run).context.tree()["c"] == "orders_app:Purchase"
    [data] = [event.data for event in engine.stores.reads.read_events(run) if event.name == "context.migrated"]
    assert data["migration"] == ("1" if migration else None)


class Inner(BaseModel):
    """The context of an imported pipeline, which the importing one had itself before."""

    title: str = "Emma"


class Outer(BaseModel):
    """What the importing pipeline has now."""

    price: int = 3


def test_an_import_s_own_context_is_not_a_former_one_of_its_importer(engine):
    """Also where the importing pipeline had its model once."""
    former = Pipeline([Step("a", str)], name="orders", context_model=Inner)
    inner = Pipeline([Step("read", lambda _, *, context: context.title)], context_model=Inner)
    pipeline = Pipeline([ImportStep("inner", pipeline=inner)], name="orders", context_model=Outer)
    engine.stores.code.adopt_plan(engine._local.put(pipeline), compile_plan(former), None)
    result = engine.run(pipeline, "in")
    assert (result.run_status, result.output) == ("succeeded", "Emma")


@pytest.mark.parametrize("key", ["1", "fingerprint"])
def test_a_function_under_the_version_or_the_fingerprint_migrates_it(engine, run, deploy, key):
    key = engine.stores.reads.read_run(run).fingerprint[:12] if key == "fingerprint" else key
    go_on(engine, run, deploy(orders("cents: int = 0", migrations=TO_CENTS, functions=f"{{{key!r}: to_cents}}")))
    assert output(engine, run) == {"title": "Emma", "cents": 300}
    assert engine.stores.reads.read_run(run).context.tree()["v"] == {"title": "Emma", "cents": 300}
    [data] = [event.data for event in engine.stores.reads.read_events(run) if event.name == "context.migrated"]
    assert data == {"migration": key, "changes": ["field 'price' was removed", "field 'note' was removed"]}


def test_it_is_migrated_once(engine, run, deploy):
    steps = f'{READ}, Step("again", lambda data: data)'
    old = orders('price: int = 3\n    note: str = ""', steps=steps)
    first = engine.enqueue(deploy(old), "in")
    engine.drain()
    new = orders("cents: int = 0", migrations=TO_CENTS, functions='{"1": to_cents}', steps=steps)
    go_on(engine, first, deploy(new))
    assert output(engine, first)["cents"] == 300
    assert [event.name for event in engine.stores.reads.read_events(first)].count("context.migrated") == 1


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('raise ValueError("hunter2")', "the migration for '1' raised ValueError"),
        ('return old["cost"]', "the migration for '1' raised KeyError 'cost'"),
        ("return [old]", "the migration for '1' returned a list; return a mapping of fields, or a Order"),
        ('return {"cents": "many"}', "the migration for '1' returned what does not fit Order: cents: "),
        ('return {"cents": 1, "price": 3}', "the migration for '1' returned fields that Order does not have: price"),
        ("raise SystemExit(3)", "the migration for '1' raised RuntimeError"),
    ],
)
def test_a_function_that_does_not_do_parks_the_run(engine, run, deploy, body, why):
    migration = f"def to_cents(old):\n    {body}"
    go_on(engine, run, deploy(orders("cents: int = 0", migrations=migration, functions='{"1": to_cents}')))
    reason = parked(engine, run)
    assert why in reason
    assert "hunter2" not in reason
    assert "many" not in reason


def test_a_function_for_another_version_is_not_called(engine, run, deploy):
    go_on(engine, run, deploy(orders("cents: int = 0", migrations=TO_CENTS, functions='{"2": to_cents}')))
    assert "field 'price' was removed" in parked(engine, run)


SPEND = """
def spend(data, *, context):
    CHANGES
    return data
"""
IN_EURO, IN_CENTS = SPEND.replace("CHANGES", "context.price += 1"), SPEND.replace("CHANGES", "context.cents += 50")
ASKED = 'Pipeline([HumanInTheLoopStep("b", "And?"), Step("c", spend)])'
BOTH = f'ParallelStep("both", branches={{"a": {ASKED}, "d": Step("d", spend)}}), {READ}'
INNER = f'ParallelStep("inner", branches={{"b1": {ASKED}, "b2": Step("e", spend)}})'
NESTED = f'ParallelStep("both", branches={{"a": {INNER}, "d": Step("d", spend)}}), {READ}'
ROUND = f'LoopStep("round", body={ASKED}, exit_condition_callable=lambda *_: True, max_loops=2)'
LOOPING = f'ParallelStep("both", branches={{"a": {ROUND}, "d": Step("d", spend)}}), {READ}'
CUSTOM = BOTH.replace('"d", spend)}', '"d", spend)}, merge_strategy=merge')
MERGE = """
def merge(context, branches):
    context.cents = sum(each.cents for each in branches.values())
"""


def within_fan_out(engine, deploy, fields, *, functions=IN_EURO, steps=BOTH):
    """Begin a run of the old model, and bring it to where one branch has ended and the other waits for a person."""
    run = engine.enqueue(deploy(orders(fields, migrations=functions, steps=steps)), "in")
    engine.drain()
    engine.answer(run, "yes", step="ask")
    assert [each.step for each in engine.approvals(run)] == ["b"]
    return run


@pytest.mark.parametrize(
    ("steps", "cents"),
    [(BOTH, 450), (NESTED, 550), (LOOPING, 450), (CUSTOM, 400 + 350)],
    ids=["both", "nested", "loop", "custom"],
)
def test_an_open_fan_out_is_migrated_where_its_branches_meet(engine, deploy, steps, cents):
    """One branch ended with a euro more under the old model, the other ends with 50 cents more under the present one."""
    run = within_fan_out(engine, deploy, "price: int = 3", functions=IN_EURO + MERGE, steps=steps)
    functions = IN_CENTS + TO_CENTS + MERGE
    go_on(engine, run, deploy(orders("cents: int = 0", migrations=functions, functions='{"1": to_cents}', steps=steps)))
    assert output(engine, run) == {"title": "Emma", "cents": cents}
    migrated = [event.data for event in engine.stores.reads.read_events(run) if event.name == "context.migrated"]
    assert {each["migration"] for each in migrated} == {"1"}


def test_a_fan_out_outlives_two_changes_of_its_model(engine, deploy):
    """One branch ended under the first model, one under the second, and the third joins them."""
    steps = BOTH.replace('"d": ', f'"e": {ASKED.replace("b", "f")}, "d": ')
    run = engine.enqueue(deploy(orders("price: int = 3", migrations=IN_EURO, steps=steps)), "in")
    engine.drain()
    engine.answer(run, "yes", step="ask")
    second = orders("cents: int = 0", migrations=IN_CENTS + TO_CENTS, functions='{"1": to_cents}', steps=steps)
    go_on(engine, run, deploy(second), step="b")
    mills = SPEND.replace("CHANGES", "context.mills += 5") + (
        "def to_mills(old):\n"
        "    return {'title': old['title'], 'mills': old['cents'] * 10 if 'cents' in old else old['price'] * 1000}"
    )
    go_on(
        engine,
        run,
        deploy(orders("mills: int = 0", migrations=mills, functions='{"1": to_mills}', steps=steps)),
        step="f",
    )
    assert output(engine, run) == {"title": "Emma", "mills": 3000 + 1000 + 500 + 5}


def test_without_a_function_an_open_fan_out_is_parked(engine, deploy):
    run = within_fan_out(engine, deploy, "price: int = 3")
    go_on(engine, run, deploy(orders("cents: int = 0", migrations=IN_CENTS, steps=BOTH)))
    assert "field 'price' was removed; give the pipeline a function" in parked(engine, run)


def test_a_function_that_fails_where_branches_meet_parks_the_join_until_one_does_not(engine, deploy):
    """The branch that waits has no surcharge yet, the one that ended has."""
    fields = "price: int = 3\n    extra: int = 0"
    run = within_fan_out(engine, deploy, fields, functions=SPEND.replace("CHANGES", "context.extra += 1"))
    spend = SPEND.replace("CHANGES", "pass")
    strict = spend + "def to_cents(old):\n    return {'cents': 100 * old['price'], 'title': {0: 'none'}[old['extra']]}"
    go_on(engine, run, deploy(orders("cents: int = 0", migrations=strict, functions='{"1": to_cents}', steps=BOTH)))
    assert "the migration for '1' raised KeyError 1" in parked(engine, run)
    assert engine.stores.reads.read_attempts(run)[-1].kind == "join"
    mended = strict.replace("{0: 'none'}", "{0: 'none', 1: 'some'}")
    deployed = orders("cents: int = 0", migrations=mended, functions='{"1": to_cents}', steps=BOTH)
    go_on(engine, run, deploy(deployed), step=None)
    engine.stores.plan_moves.unpark(run, "w")
    engine.sweep()
    engine.drain()
    assert output(engine, run) == {"title": "some", "cents": 300}


@pytest.mark.parametrize(
    ("default", "copies"),
    [
        ("= 1", 3),
        ("= Field(default_factory=lambda: next(ONES))", 3),
        ("= Field(default_factory=lambda: next(DRAWN))", None),
    ],
)
def test_branches_agree_on_a_field_that_was_added_while_they_ran(engine, deploy, default, copies):
    """One ended without the field, one counts on from its default, one leaves it; where each draws its own, the last branch's stays."""
    steps = BOTH.replace('"d": ', f'"e": {ASKED.replace("b", "f").replace("spend", "read")}, "d": ')
    run = engine.enqueue(deploy(orders("price: int = 3", migrations=IN_EURO, steps=steps)), "in")
    engine.drain()
    engine.answer(run, "yes", step="ask")
    counted = "import itertools\nONES, DRAWN = itertools.repeat(1), itertools.count(100)"
    counted += SPEND.replace("CHANGES", "context.copies += 2")
    new = deploy(orders(f"price: int = 3\n    copies: int {default}", migrations=counted, steps=steps))
    go_on(engine, run, new, step="b")
    go_on(engine, run, new, step="f")
    told = output(engine, run)
    assert (told["title"], told["price"]) == ("Emma", 4)
    assert told["copies"] == copies or (copies is None and told["copies"] >= 100)


def redeployed(engine, run, entry, module, monkeypatch):
    """Go back to workers that have loaded the old code; they know what they knew."""
    engine._local._entries[engine.stores.reads.read_run(run).reference] = entry
    monkeypatch.setitem(sys.modules, "orders_app", module)
    for resolve in (engine.attempts._outcomes._resolve, engine.attempts.preparation.migrations._bench.resolve):
        resolve._found.clear()


AGAIN = (
    'Pipeline([HumanInTheLoopStep("b", "And?"), Step("c", spend), HumanInTheLoopStep("f", "And?"), Step("g", spend)])'
)
BESIDE = f'{ASKED}, "e": HumanInTheLoopStep("f", "And?")'


@pytest.mark.parametrize("branches", [AGAIN, BESIDE], ids=["step", "join"])
def test_a_worker_of_the_old_code_drops_no_field_that_a_new_one_has_written(engine, deploy, monkeypatch, branches):
    """Both are up during a rolling restart, and the old one has found its model unchanged before the new one came."""
    steps = f'ParallelStep("both", branches={{"a": {branches}, "d": Step("d", spend)}}), {READ}'
    run = engine.enqueue(deploy(orders("price: int = 3", migrations=IN_EURO, steps=steps)), "in")
    engine.drain()
    engine.answer(run, "yes", step="ask")
    old = engine._local._entries[engine.stores.reads.read_run(run).reference], sys.modules["orders_app"]
    counted = SPEND.replace("CHANGES", "context.copies += 2")
    new = deploy(orders("price: int = 3\n    copies: int = 1", migrations=counted, steps=steps))
    go_on(engine, run, new, step="b")
    now = engine._local._entries[engine.stores.reads.read_run(run).reference], sys.modules["orders_app"]
    redeployed(engine, run, *old, monkeypatch)
    engine.answer(run, "yes", step="f")
    assert "'copies'" in parked(engine, run)
    redeployed(engine, run, *now, monkeypatch)
    engine.stores.plan_moves.unpark(run, "w")
    engine.sweep()
    engine.drain()
    assert output(engine, run)["copies"] >= 3


@pytest.mark.parametrize(
    ("was", "now", "written"),
    [
        ("price: int = 3", "price: int | str = 3", "'four'"),
        ("price: list[int] = [3]", "price: list[int | str] = [3]", "['four']"),
    ],
)
def test_a_worker_of_the_old_code_notices_that_a_field_has_another_type(engine, deploy, monkeypatch, was, now, written):
    """Both have the same version, and the old one has found its model unchanged before the new one came."""
    steps = f"{AGAIN.removeprefix('Pipeline([').removesuffix('])')}, {READ}"
    run = engine.enqueue(deploy(orders(was, migrations=SPEND.replace("CHANGES", "pass"), steps=steps)), "in")
    engine.drain()
    engine.answer(run, "yes", step="ask")
    old = engine._local._entries[engine.stores.reads.read_run(run).reference], sys.modules["orders_app"]
    new = deploy(orders(now, migrations=SPEND.replace("CHANGES", f"context.price = {written}"), steps=steps))
    go_on(engine, run, new, step="b")
    present = engine._local._entries[engine.stores.reads.read_run(run).reference], sys.modules["orders_app"]
    redeployed(engine, run, *old, monkeypatch)
    if "list" in was:  # which of two lists it is takes a look at the record, and that is made every few seconds
        monkeypatch.setattr("flujo_worker.changed_code.context_migrations.LOOK_AGAIN_S", 0.0)
    engine.answer(run, "yes", step="f")
    record = engine.stores.reads.read_run(run)
    assert (record.status, record.context.tree()["v"]["price"]) == ("parked", ast.literal_eval(written))
    assert "field 'price' was " in record.reason
    redeployed(engine, run, *present, monkeypatch)
    engine.stores.plan_moves.unpark(run, "w")
    engine.sweep()
    engine.drain()
    assert output(engine, run)["price"] == ast.literal_eval(written)


def test_a_value_that_is_not_of_its_field_s_type_is_the_pipeline_s_own_affair(engine, deploy):
    """Models do not validate what is assigned: as long as the field never had another type, the run continues."""
    spend = SPEND.replace("CHANGES", "context.price = None")
    run = engine.enqueue(deploy(orders("price: int = 3", migrations=spend, steps=f'Step("c", spend), {READ}')), "in")
    engine.drain()
    engine.answer(run, "yes")
    assert output(engine, run)["price"] is None


SHAPES = """
from datetime import date
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    ONE = 1


class Inner(BaseModel):
    a: int = 1


class Every(BaseModel):
    text: str = "a"
    number: int = 1
    share: float = 2
    whole: Annotated[int, Field(gt=0)] = 3
    perhaps: int | None = None
    either: int | str = "b"
    one_of: Literal["a", 1] = 1
    many: list[int] = [1]
    named: dict[str, int] = {"a": 1}
    inner: Inner = Inner()
    inners: list[Inner] = [Inner()]
    day: date = date(2026, 1, 2)
    price: Decimal = Decimal("1.5")
    path: Path = Path("a")
    colour: Colour = Colour.RED
    level: Level = Level.ONE
    several: set[int] = {1}
    pair: tuple[int, str] = (1, "a")
    yes: bool = True
    anything: Any = (1, 2)
"""


def test_values_of_their_field_s_type_are_not_suspected(tmp_path, monkeypatch):
    (tmp_path / "shapes_of_fields.py").write_text(SHAPES)
    monkeypatch.syspath_prepend(str(tmp_path))
    every = importlib.import_module("shapes_of_fields").Every
    tree = encode(every())
    assert fields_of(tree).keys() == every.model_fields.keys()
    assert not may_be_other(every, tree)
    others = {name: may_be_other(every, {**tree, "v": {**tree["v"], name: True}}) for name in every.model_fields}
    assert [name for name, is_other in others.items() if not is_other] == [
        "day", "price", "path", "colour", "level", "several", "pair", "yes", "anything",
    ]  # fmt: skip


def test_what_a_worker_of_the_old_code_keeps_as_an_extra_field_is_read_as_the_field_it_is(engine, deploy, monkeypatch):
    """A `PipelineContext` keeps fields that it does not declare, so that the old worker need not stop at it."""

    def keeping(fields, functions):
        steps = (
            f'{AGAIN.removeprefix("Pipeline([").removesuffix("])")}, HumanInTheLoopStep("h", "And?"), Step("i", told)'
        )
        told = "def told(data, *, context):\n    return {name: value for name, value in context if name in ('price', 'copies')}"
        source = orders(fields, migrations=f"{functions}\n{told}", steps=steps)
        return source.replace("(BaseModel)", "(PipelineContext)").replace(
            "import Human", "import PipelineContext, Human"
        )

    run = engine.enqueue(deploy(keeping("price: int = 3", IN_EURO)), "in")
    engine.drain()
    engine.answer(run, "yes", step="ask")
    old = engine._local._entries[engine.stores.reads.read_run(run).reference], sys.modules["orders_app"]
    go_on(
        engine,
        run,
        deploy(keeping("price: int = 3\n    copies: int = 1", SPEND.replace("CHANGES", "context.copies += 2"))),
    )
    now = engine._local._entries[engine.stores.reads.read_run(run).reference], sys.modules["orders_app"]
    redeployed(engine, run, *old, monkeypatch)
    engine.answer(run, "yes", step="f")
    redeployed(engine, run, *now, monkeypatch)
    engine.answer(run, "yes", step="h")

    assert output(engine, run) == {"price": 4, "copies": 3}


@pytest.mark.parametrize(
    ("given", "why"), [([], "must be a mapping"), ({1: str}, r"context_migrations\['1'\]"), ({"1": "f"}, "got")]
)
def test_migrations_that_are_none_are_refused_where_they_are_written(given, why):
    with pytest.raises(PipelineError, match=why):
        Pipeline([Step("a", len)], context_migrations=given)
