"""Law: whatever is damaged in a row of ours, its run ends or is parked with a reason, and no other run is harmed.

Every column of every table that a live run depends on is damaged, at a random moment, before a worker that has not read it yet continues.
"""

import random

import psycopg
import pytest
from damage_engine import ROUNDS, Engine
from damage_pipelines import LIMITS

from tests.support.breadth import examples, large

pytestmark = pytest.mark.services

TABLES = {
    "runs": "ended_at IS NULL",
    "scopes": "status = 'open'",
    "attempts": "status IN ('ready', 'queued', 'running', 'paused')",
    "inputs": "true",
    "contexts": "true",
    "reservations": "held",
    "pipelines": "name = 'victim'",
    "blobs": "true",
    "budgets": "true",
}
"""Tables of rows that a live run depends on, and which of them it still does."""
MESSAGES = 16
"""About as many as the run has."""
OVER = {"succeeded", "failed", "cancelled", "expired"}
FREE = {
    ("attempts", "available_at"),
    ("runs", "id"),
    ("runs", "parent_run"),
}
"""What cannot be told from a value of ours: a time to come, another run."""
DAMAGE = {
    "text": ["", "garbage", "x" * 3000, "a/b#c:d"],
    "jsonb": ["null", "{}", "[]", '"x"', '{"a": 1}', '{"nodes": 7}', "[" * 3000 + "]" * 3000, "1e400000"],
    "bytea": [b"", b"x", b"j", b"j{", b"z\x28\xb5\x2f\xfd", b"#" + b"0" * 64, b"j\x00\xff"],
    "integer": [-1, 0, 99, 2**31 - 1],
    "smallint": [-5, 99],
    "bigint": [-1, 99],
    "boolean": [True, False],
    "double precision": [-1.0, float("nan"), float("inf")],
    "numeric": [-1, 99],
    "ARRAY": [[], ["x"]],
    "uuid": ["00000000-0000-0000-0000-000000000000"],
    "timestamp with time zone": ["1970-01-01", "2100-01-01"],
}


@pytest.fixture(scope="module")
def engine(migrated_url):
    engine = Engine(migrated_url)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def places(engine):
    """What there is to damage: of each table every column with its type, and `*` for the whole row."""
    found = engine.rows.rows(
        "SELECT substr(table_name, 7) AS name, column_name, data_type FROM information_schema.columns "
        "WHERE substr(table_name, 7) = ANY(%(names)s) ORDER BY 1, ordinal_position",
        names=list(TABLES),
    )
    named = [(row["name"], row["column_name"], row["data_type"]) for row in found]
    return [each for each in named if each[:2] not in FREE] + [(table, "*", "text") for table in TABLES]


def damage(engine, table, column, value, draw):
    """Damage one row; tell whether there is one, and the database let it happen."""
    rows = engine.rows.rows(f"SELECT ctid::text AS at FROM flujo_{table} WHERE {TABLES[table]} ORDER BY ctid")
    if not rows:
        return False
    at = draw.choice(rows)["at"]
    change = f"DELETE FROM flujo_{table}" if column == "*" else f"UPDATE flujo_{table} SET {column} = %(value)s"
    try:
        engine.rows.rows(f"{change} WHERE ctid = %(at)s::tid RETURNING 1", value=value, at=at)
    except psycopg.Error:  # a check, a key: the database itself does not have it
        return False
    return True


def go_on(engine, run, messages, draw):
    """Deliver so many messages of a run, fewer if it ends."""
    for _ in range(messages):
        if engine.statuses(run)[run] in OVER:
            return
        if not engine.bus.messages:
            engine.recover(deliver=False)
        if engine.bus.messages:
            engine.deliver(draw)


def outlived(engine, place, draw):
    """Damage a row of a live run at some moment; say the outcome of it, and of the run next to it. None: the database would not have it."""
    table, column, kind = place
    value = draw.choice([*DAMAGE[kind], None])
    engine.empty()
    run = engine.enqueue("damage_pipelines:victim", LIMITS)
    go_on(engine, run, draw.randrange(MESSAGES), draw)
    if not damage(engine, table, column, value, draw):
        return None
    beside = engine.enqueue("damage_pipelines:onlooker")
    engine.begin()
    for _ in range(ROUNDS):
        if set(engine.statuses(run, beside).values()) <= OVER | {"parked"}:
            break
        engine.recover()
    return f"{table}.{column} = {str(value)[:30]!r}", run, beside


def wrong(engine, place, draw):
    """What the law does not allow, or None."""
    came = outlived(engine, place, draw)
    if came is None:
        return None
    what, run, beside = came
    found = engine.statuses(run, beside)
    if found.get(beside) != "succeeded":
        return f"{what}: the run beside it is {found.get(beside)}"
    if run not in found:
        return None
    [told] = engine.rows.rows("SELECT reason, error FROM flujo_runs WHERE id = %(run)s", run=run)
    if found[run] not in OVER | {"parked"}:
        return f"{what}: it is {found[run]}"
    if found[run] in ("parked", "failed") and not (told["reason"] and (told["error"] or found[run] == "parked")):
        return f"{what}: it is {found[run]}, and not set why"
    return None


@pytest.mark.parametrize("times", [10, large(60)])
def test_whatever_is_damaged_its_run_ends_and_no_other_is_harmed(engine, places, times):
    draw = random.Random(11)
    found = [wrong(engine, draw.choice(places), draw) for _ in range(examples(times))]
    assert [each for each in found if each] == []
