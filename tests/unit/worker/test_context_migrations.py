"""Contexts that were written with another version of their model: read, migrated, or waited for; never failed, never half-moved."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from flujo_client import Pipeline, Step
from flujo_client.errors import PipelineError
from flujo_worker.testing import LocalEngine

SOURCE = """
from pydantic import BaseModel, Field

from flujo_client import HumanInTheLoopStep, ParallelStep, Pipeline, Step


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
def engine():
    with LocalEngine() as engine:
        yield engine


@pytest.fixture
def run(engine, deploy):
    """A run of the old model, which waits for a person; the context has all its fields."""
    run = engine.enqueue(deploy(OLD), "in")
    engine.drain()
    assert engine.store.read_run(run).context.tree()["v"] == {"title": "Emma", "price": 3, "note": "signed"}
    return run


def go_on(engine, run, pipeline):
    """Deploy and answer; workers that have only the new code carry the run on."""
    reference = engine.store.read_run(run).reference
    entry = engine._local._entries[engine._local.put(pipeline)]
    assert entry.plan.fingerprint == engine.store.read_run(run).fingerprint, "the fingerprint leaves it out"
    engine._local._entries[reference] = entry
    for resolve in (engine.attempts._outcomes._resolve, engine.attempts.preparation._migrations._bench.resolve):
        resolve._found.clear()
    engine.answer(run, "yes")


def output(engine, run):
    record = engine.store.read_run(run)
    assert record.status == "succeeded", record.reason
    return engine.result(run).output


def parked(engine, run):
    """Tell why the run is parked; nothing of it has moved."""
    record = engine.store.read_run(run)
    assert record.status == "parked"
    assert record.context.tree()["v"]["price"] == 3
    assert [each.status for each in engine.store.read_attempts(run)][-1] == "ready"
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


@pytest.mark.parametrize("key", ["1", "fingerprint"])
def test_a_function_under_the_version_or_the_fingerprint_migrates_it(engine, run, deploy, key):
    key = engine.store.read_run(run).fingerprint[:12] if key == "fingerprint" else key
    go_on(engine, run, deploy(orders("cents: int = 0", migrations=TO_CENTS, functions=f"{{{key!r}: to_cents}}")))

    assert output(engine, run) == {"title": "Emma", "cents": 300}
    assert engine.store.read_run(run).context.tree()["v"] == {"title": "Emma", "cents": 300}
    [told] = [event.data for event in engine.store.read_events(run) if event.name == "context.migrated"]
    assert told == {"migration": key, "changes": ["field 'price' was removed", "field 'note' was removed"]}


def test_it_is_migrated_once(engine, run, deploy):
    steps = f'{READ}, Step("again", lambda data: data)'
    old = orders('price: int = 3\n    note: str = ""', steps=steps)
    first = engine.enqueue(deploy(old), "in")
    engine.drain()
    new = orders("cents: int = 0", migrations=TO_CENTS, functions='{"1": to_cents}', steps=steps)
    go_on(engine, first, deploy(new))

    assert output(engine, first)["cents"] == 300
    assert [event.name for event in engine.store.read_events(first)].count("context.migrated") == 1


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


def test_an_open_fan_out_waits_for_the_model_of_before(engine, deploy):
    """What its branches have changed is told by fields."""
    inside = 'ParallelStep("both", branches={"a": Pipeline([HumanInTheLoopStep("b", "And?"), Step("c", read)]), "d": Step("d", read)})'
    old = orders("price: int = 3", steps=inside)
    run = engine.enqueue(deploy(old), "in")
    engine.drain()
    engine.answer(run, "yes")
    assert engine.store.read_run(run).status == "paused"
    go_on(engine, run, deploy(orders("cents: int = 0", migrations=TO_CENTS, functions='{"1": to_cents}', steps=inside)))

    assert "its context model changed while a fan-out is open" in parked(engine, run)


@pytest.mark.parametrize(
    ("given", "why"), [([], "must be a mapping"), ({1: str}, r"context_migrations\['1'\]"), ({"1": "f"}, "got")]
)
def test_migrations_that_are_none_are_refused_where_they_are_written(given, why):
    with pytest.raises(PipelineError, match=why):
        Pipeline([Step("a", len)], context_migrations=given)
