"""A group has the effect of single statements on each of its rows, or none: random groups over rows in every state, run beside twins."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from grouped import break_statement, grouped
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row
from worlds import MAX_LOST, World

from flujo_client.contract.outcome import Event
from flujo_worker.ports import Committed, PlanName
from tests.support.builders import SPENT, decided, enqueued, failed, pipeline_of, succeeded

pytestmark = pytest.mark.services

TABLES = {
    "attempts": "run_id",
    "scopes": "run_id",
    "runs": "id",
    "contexts": "run_id",
    "events": "run_id",
    "spends": "run_id",
}
DRAWN = {"claim_id", "id", "at", "created_at", "opened_at", "xid", "written_at"}
"""Columns that two rows never have alike."""
OUTCOMES = {
    "changes": replace(succeeded("one", {"n": 2}), usage=SPENT, events=(Event("told", {"x": 1}, "info"),)),
    "keeps": succeeded("one"),
    "retries": failed(),
    "fails": failed("validation", retryable=False),
}
ENDED = ("succeeded", "cancelled")
STATES = {
    "status": ("ready", "queued", "running", "succeeded", "cancelled"),
    "fence": (0, 1, 2),
    "losses": (0, 1, 2),
    "worker": ("w1", "dead", None),
}
RUNS = ("queued", "running", "parked", "failed")


def mostly(value: Any, others: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    """The ordinary value three times out of four, or else all conditions would seldom hold together."""
    return st.sampled_from([value] * 3 * len(others) + list(others))


CLAIMED = st.fixed_dictionaries(
    {
        "steps": st.sampled_from([1, 2]),
        "status": mostly("ready", STATES["status"]),
        "fence": mostly(0, STATES["fence"]),
        "losses": mostly(0, STATES["losses"]),
        "holder": st.sampled_from(STATES["worker"]),
        "run": mostly("running", RUNS),
        "cancelled": mostly(False, (True,)),
        "late": mostly(False, (True,)),
        "aborted": mostly(False, (True,)),
        "by": mostly("w1", ("dead", "none")),
        "plan": mostly("right", ("none", "wrong")),
        "fan_outs": st.sampled_from([(), ("",), ("x",)]),
    }
)
MERGED = st.fixed_dictionaries(
    {
        "steps": st.sampled_from([1, 2]),
        "status": mostly("running", STATES["status"]),
        "fence": mostly(1, STATES["fence"]),
        "losses": st.just(0),
        "holder": st.just("w1"),
        "run": mostly("running", RUNS),
        "cancelled": mostly(False, (True,)),
        "late": mostly(False, (True,)),
        "aborted": st.just(False),
        "scope": mostly("open", ("cancelled",)),
        "version": mostly(0, (1,)),
        "outcome": st.sampled_from(sorted(OUTCOMES)),
    }
)


@pytest.fixture(scope="module")
def place(postgres, database_url):
    """A database with groups, and another connection to look at its rows."""
    with grouped(database_url) as groups, psycopg.connect(database_url, autocommit=True, row_factory=dict_row) as db:
        postgres.empty()
        world = World(postgres)
        world.register_worker("dead")
        world.stores.leases.deregister_worker("dead")
        longer = "UPDATE flujo_workers SET lease_until = now() + interval '1 h' WHERE lease_until > now()"
        db.execute(longer)  # on a busy machine the laws outlast a lease
        yield SimpleNamespace(groups=groups, db=db, world=world, stores=world.stores)


def made(place, row: dict[str, Any]):
    """Record a run, and put its rows into a state."""
    new = place.world.record(enqueued(pipeline_of(*"ab"[: row["steps"]], max_retries=2), context={"n": 1}))
    run = new.first.ticket.run
    ended = "now()" if row["run"] == "failed" else "NULL"
    place.db.execute(
        f"UPDATE flujo_runs SET status = %s, ended_at = {ended}, cancel_requested_at = CASE WHEN %s THEN now() END,"
        " deadline_at = CASE WHEN %s THEN now() - interval '1 s' END WHERE id = %s",
        [row["run"], row["cancelled"], row["late"], run],
    )
    place.db.execute(
        "UPDATE flujo_attempts SET status = %s, ended_at = CASE WHEN %s THEN now() END, fence = %s, losses = %s, worker = %s WHERE run_id = %s",
        [row["status"], row["status"] in ENDED, row["fence"], row["losses"], row["holder"], run],
    )
    place.db.execute(
        "UPDATE flujo_scopes SET status = %s, version = %s, aborted = %s WHERE run_id = %s",
        [row.get("scope", "open"), row.get("version", 0), row["aborted"], run],
    )
    return new


def picture(place, new) -> dict[str, list[Any]]:
    """Everything that stands about a run, but for what is drawn; of times, whether they are there and whether they are to come."""
    run = new.first.ticket.run
    rows = {
        table: place.db.execute(f"SELECT * FROM flujo_{table} WHERE {key} = %s", [run]).fetchall()
        for table, key in TABLES.items()
    }
    return {table: sorted(repr(_plain(row, run)) for row in found) for table, found in rows.items()}


def _plain(row: dict[str, Any], run: str) -> dict[str, Any]:
    return {
        name: value.isoformat()[:4] if hasattr(value, "isoformat") else repr(value).replace(run, "run")
        for name, value in row.items()
        if name not in DRAWN
    }


def check_claims(place, rows: list[dict[str, Any]]) -> None:
    grouped_, alone = [made(place, row) for row in rows], [made(place, row) for row in rows]
    before = [picture(place, new) for new in grouped_]
    asked = [
        {"fan_outs": row["fan_outs"], "plan": plan_of(new, row["plan"])}
        for new, row in zip(grouped_, rows, strict=True)
    ]
    single = [
        place.stores.attempts.claim(new.first.key, row["by"], max_lost=MAX_LOST, **each)
        for new, row, each in zip(alone, rows, asked, strict=True)
    ]
    answers = place.groups.together(
        *(
            place.groups.ledger.claim(new.first.key, row["by"], **each)
            for new, row, each in zip(grouped_, rows, asked, strict=True)
        )
    )
    for row, new, twin, was, answer, expected in zip(rows, grouped_, alone, before, answers, single, strict=True):
        is_theirs = expected.refusal is None and row["status"] in ("ready", "queued")
        assert answer == (expected if is_theirs else None), row
        assert picture(place, new) == (picture(place, twin) if is_theirs else was), row


def check_merges(place, rows: list[dict[str, Any]]) -> None:
    grouped_, alone = [made(place, row) for row in rows], [made(place, row) for row in rows]
    before = [picture(place, new) for new in grouped_]
    decide = lambda new, row: decided(new, OUTCOMES[row["outcome"]], fence=1)  # noqa: E731
    single = [place.stores.attempts.commit(decide(new, row)) for new, row in zip(alone, rows, strict=True)]
    answers = place.groups.together(
        *(place.groups.ledger.commit(decide(new, row)) for new, row in zip(grouped_, rows, strict=True))
    )
    for row, new, twin, was, answer, expected in zip(rows, grouped_, alone, before, answers, single, strict=True):
        is_merged = expected == Committed("merged")
        assert answer == (expected if is_merged else None), row
        assert picture(place, new) == (picture(place, twin) if is_merged else was), row


def plan_of(new, which: str) -> PlanName | None:
    right = PlanName(new.first.ticket.reference, new.first.ticket.fingerprint)
    return {"right": right, "none": None, "wrong": right._replace(reference="other:pipeline")}[which]


@given(rows=st.lists(CLAIMED, min_size=1, max_size=8))
@settings(max_examples=25)
def test_a_group_claims_as_claim_sql_does(place, rows):
    check_claims(place, rows)


@given(rows=st.lists(MERGED, min_size=1, max_size=8))
@settings(max_examples=25)
def test_a_group_merges_as_conclude_sql_does(place, rows):
    check_merges(place, rows)


HALF = "FROM decision h WHERE h.place = ANY(ARRAY(SELECT place FROM attempt)) AND a.key = h.key"
MUTANTS = {
    "merges under a stale fence": ("conclude_many", "AND a.fence = d.fence", ""),
    "merges what is not running": ("conclude_many", "AND a.status = 'running'", ""),
    "loses one of its rows": (
        "conclude_many",
        "FROM held h WHERE a.key = h.key",
        "FROM held h WHERE a.key = h.key AND h.place <> 2",
    ),
    "commits half": ("conclude_many", "FROM held h WHERE a.key = h.key", HALF),
    "merges into a scope that moved": ("conclude_many", "AND s.version = d.seen", ""),
    "merges into a closed scope": ("conclude_many", "AND s.status = 'open' AND s.version", "AND s.version"),
    "merges into a cancelled run": ("conclude_many", "AND r.cancel_requested_at IS NULL", ""),
    "moves no scope": ("conclude_many", "WHERE s.run_id = h.run AND", "WHERE false AND s.run_id = h.run AND"),
    "forgets what was spent": (
        "conclude_many",
        "u JOIN merged m ON m.place = u.of",
        "u JOIN merged m ON m.place = -u.of",
    ),
    "tells all stories of the first": (
        "conclude_many",
        "e JOIN merged m ON m.place = e.of\n)",
        "e JOIN merged m ON m.place = 1 AND e.of > 0\n)",
    ),
    "claims for the dead": ("claim", "SELECT w.lease_until > now()", "SELECT true"),
    "claims what was lost too often": ("claim", "a.losses + a.suspicions + (a.status = 'running')::int <", "0 <"),
    "claims another pipeline": ("claim", "= (q.reference, q.fingerprint)", "IS NOT NULL"),
    "claims what has ended": ("claim", "AND ((a.status IN ('ready', 'queued')", "AND ((true"),
    "does not begin the run": (
        "claim",
        "FROM queued q WHERE r.id = q.id",
        "FROM queued q WHERE false AND r.id = q.id",
    ),
    "sees no abort": ("claim", "SELECT s.aborted", "SELECT NOT s.aborted"),
}


@pytest.mark.large
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(place, database_url, monkeypatch, mutant):
    """The laws above see a statement that breaks a promise."""
    name, said, instead = MUTANTS[mutant]
    break_statement(monkeypatch, name, said, instead)
    check, rows = (check_claims, CLAIMED) if name == "claim" else (check_merges, MERGED)
    with grouped(database_url) as groups:
        there = SimpleNamespace(**{**vars(place), "groups": groups})

        @given(rows=st.lists(rows, min_size=2, max_size=6))
        @settings(max_examples=100, phases=[Phase.generate])
        def search(rows):
            check(there, rows)

        with pytest.raises(AssertionError):
            search()
