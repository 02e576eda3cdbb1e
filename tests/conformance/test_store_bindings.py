"""Statements are bound by name: columns of entities, parameters of statements and columns of tables are the same, in one order."""

import re

import psycopg
import pytest

from flujo_client.sql_files import written
from flujo_worker.store.postgres.entities import (
    ENDED_ATTEMPT,
    ENDED_RUN,
    NEW_ATTEMPT,
    NEW_CHECKPOINT,
    NEW_CHILD_RUN,
    NEW_CORRECTION,
    NEW_EVENT,
    NEW_SCOPE,
    NEW_SPEND,
    SCOPE_UPDATE,
    STORED_VALUE,
)
from flujo_worker.store.postgres.statements import HOME

ARRAYS = [
    ("conclude", "move", SCOPE_UPDATE),
    ("conclude", "open", NEW_SCOPE),
    ("conclude", "stored", STORED_VALUE),
]
COLUMNS = [
    ("conclude", "event", NEW_EVENT),
    ("conclude", "next", NEW_ATTEMPT),
    ("conclude", "begun", NEW_CHECKPOINT),
    ("conclude_many", "close", ENDED_ATTEMPT),
    ("conclude_many", "move", SCOPE_UPDATE),
    ("conclude_many", "next", NEW_ATTEMPT),
    ("conclude_many", "run", ENDED_RUN),
    ("conclude_many", "spend", NEW_SPEND),
    ("conclude_many", "stored", STORED_VALUE),
    ("record_corrections", "correction", NEW_CORRECTION),
    ("settle", "spend", NEW_SPEND),
]
RENAMED = {"move_status": "scope_status", "move_error": "scope_error", "move_metadata": "scope_metadata"}
"""Columns of conclude_many.sql that another entity of the same row has under the same name."""
SINGLE = [("conclude", "child", NEW_CHILD_RUN)]
TABLES = [
    ("move", SCOPE_UPDATE, "flujo_scopes"),
    ("open", NEW_SCOPE, "flujo_scopes"),
    ("next", NEW_ATTEMPT, "flujo_attempts"),
]
MADE = {"next": ["key", "after_s"], "open": ["lanes", "held"], "child": ["after_s"]}
"""Columns that need more than their row."""
AS_BOUND = {"integer": "int", "boolean": "bool", "jsonb": "text"}
"""JSON goes as text, and is cast where it is written."""


def names_of(prefix, kind):
    return {*kind, *MADE.get(prefix, ())}


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
    assert set(bound(arrays, prefix)) == names_of(prefix, kind)
    assert columns[: len(names_of(prefix, kind))] == list(bound(arrays, prefix))


@pytest.mark.parametrize(("statement", "prefix", "kind"), COLUMNS)
def test_columns_are_named_after_the_arrays_they_are_made_of(statement, prefix, kind):
    made = dict(re.findall(rf"unnest\(%\(({prefix}_\w+)\)s::\w+\[\]\) AS (\w+)", text_of(statement)))
    expected = {f"{prefix}_{name}": RENAMED.get(f"{prefix}_{name}", name) for name in names_of(prefix, kind)}
    assert {name: column for name, column in made.items() if column != "of"} == expected


@pytest.mark.parametrize(("statement", "prefix", "kind"), SINGLE)
def test_single_rows_have_no_other_parameters(statement, prefix, kind):
    assert bound(text_of(statement), prefix).keys() <= names_of(prefix, kind)
    assert bound(text_of(statement), prefix)


@pytest.mark.services
@pytest.mark.parametrize(("prefix", "kind", "table"), TABLES)
def test_fields_have_the_types_of_their_columns(migrated_url, prefix, kind, table):
    columns = "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
    with psycopg.connect(migrated_url) as connection:
        types = {name: AS_BOUND.get(given, given) for name, given in connection.execute(columns, [table])}
    known = {name: given for name, given in bound(text_of("conclude"), prefix).items() if name in types}
    assert len(known) > len(names_of(prefix, kind)) / 2
    assert known == {name: types[name] for name in known}
