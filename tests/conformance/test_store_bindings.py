"""Statements are bound by name: fields of entities, parameters of statements and columns of tables are the same, in one order."""

import re
from dataclasses import fields

import psycopg
import pytest

from flujo_client.sql_files import written
from flujo_worker.store.postgres.entities import (
    EndedAttempt,
    EndedRun,
    NewAttempt,
    NewCheckpoint,
    NewChildRun,
    NewCorrection,
    NewEvent,
    NewScope,
    NewSpend,
    ScopeUpdate,
)
from flujo_worker.store.postgres.statements import HOME

ARRAYS = [
    ("conclude", "move", ScopeUpdate),
    ("conclude", "open", NewScope),
]
COLUMNS = [
    ("conclude", "event", NewEvent),
    ("conclude", "next", NewAttempt),
    ("conclude", "begun", NewCheckpoint),
    ("conclude_many", "close", EndedAttempt),
    ("conclude_many", "move", ScopeUpdate),
    ("conclude_many", "next", NewAttempt),
    ("conclude_many", "run", EndedRun),
    ("conclude_many", "spend", NewSpend),
    ("record_corrections", "correction", NewCorrection),
    ("settle_many", "spend", NewSpend),
]
RENAMED = {"move_status": "scope_status", "move_error": "scope_error", "move_metadata": "scope_metadata"}
"""Columns of conclude_many.sql that another entity of the same row has under the same name."""
SINGLE = [("conclude", "child", NewChildRun)]
TABLES = [
    ("move", ScopeUpdate, "flujo_scopes"),
    ("open", NewScope, "flujo_scopes"),
    ("next", NewAttempt, "flujo_attempts"),
]
AS_BOUND = {"integer": "int", "boolean": "bool", "jsonb": "text"}
"""JSON goes as text, and is cast where it is written."""


def names_of(kind):
    return [each.name for each in fields(kind)]


def text_of(statement):
    return written(statement, HOME)


def bound(text, prefix):
    """The parameters of a prefix with their types, in the order in which they come."""
    return dict(re.findall(rf"%\({prefix}_(\w+)\)s::(\w+)", text))


@pytest.mark.parametrize(("statement", "prefix", "kind"), ARRAYS)
def test_arrays_are_named_after_the_fields_in_one_order(statement, prefix, kind):
    """Two text columns that changed places would be found by nothing else."""
    [unnested] = [part for part in text_of(statement).split("unnest(")[1:] if f"%({prefix}_" in part.split(" AS ")[0]]
    arrays, _, rest = unnested.partition(" AS ")
    columns = re.match(r"\w+ \(([^)]*)\)", rest)[1].split(", ")
    assert list(bound(arrays, prefix)) == names_of(kind)
    assert columns[: len(names_of(kind))] == names_of(kind)


@pytest.mark.parametrize(("statement", "prefix", "kind"), COLUMNS)
def test_columns_are_named_after_the_arrays_they_are_made_of(statement, prefix, kind):
    made = dict(re.findall(rf"unnest\(%\(({prefix}_\w+)\)s::\w+\[\]\) AS (\w+)", text_of(statement)))
    expected = {f"{prefix}_{name}": RENAMED.get(f"{prefix}_{name}", name) for name in names_of(kind)}
    assert {name: column for name, column in made.items() if column != "of"} == expected


@pytest.mark.parametrize(("statement", "prefix", "kind"), SINGLE)
def test_single_rows_have_no_other_parameters(statement, prefix, kind):
    assert bound(text_of(statement), prefix).keys() <= set(names_of(kind))
    assert bound(text_of(statement), prefix)


@pytest.mark.services
@pytest.mark.parametrize(("prefix", "kind", "table"), TABLES)
def test_fields_have_the_types_of_their_columns(migrated_url, prefix, kind, table):
    columns = "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
    with psycopg.connect(migrated_url) as connection:
        types = {name: AS_BOUND.get(given, given) for name, given in connection.execute(columns, [table])}
    known = {name: given for name, given in bound(text_of("conclude"), prefix).items() if name in types}
    assert len(known) > len(names_of(kind)) / 2
    assert known == {name: types[name] for name in known}
