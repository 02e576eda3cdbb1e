"""What a system at work asks of Postgres all the time, asked once of a real store, and how Postgres would do each statement of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

import psycopg
import pytest
from grouped import Grouped
from psycopg import sql
from psycopg.rows import tuple_row
from trees import ASKED, asking, close_all, fanned_out, joined, signal_join
from worlds import LEASE_S, MAX_LOST, Postgres, World

from flujo_client.config.models import Health
from flujo_client.contract.outcome import Usage
from flujo_client.contract.records import NewRun
from flujo_client.contract.run_filter import RunFilter
from flujo_client.gateway import operator_requests, requests
from flujo_client.gateway.operator_requests import stats
from flujo_client.gateway.requests import Request
from flujo_client.health.facts import HealthQuery
from flujo_client.serial import Packed
from flujo_worker.domain.budget import Amount, Reservation
from flujo_worker.domain.ended import KINDS, EndedAttempt, Position
from flujo_worker.domain.retention import RetentionRule
from flujo_worker.domain.units import SettledUnit, Unit, UnitName
from flujo_worker.ports import BrokerSnapshot
from flujo_worker.store.postgres.loop_connection import LoopConnection
from flujo_worker.store.postgres.statements import CLIENT, HOME, statement, types
from tests.support.builders import decided, enqueued, following, packed, pipeline_of, succeeded

GROUP: Final = 8
SPENT: Final = Usage(input_tokens=10, output_tokens=5, requests=1, cost_usd=0.25)
HOT: Final = frozenset(
    name
    for names in (
        "claim refusal reserve open_budgets",  # claims
        "conclude conclude_many settle hold_budgets give_events",  # merges; `settle` also releases
        "scope children envelopes aborted_among closed_among signal_join live_join mark_sent",  # what merges ask, and publishing
        "renew release_unowned neighbours",  # leases
        "begin_sweep runs_to_stop orphaned_children poisoned aborted missed_joins idle_lanes stranded parked hand_over_events expire_questions offer_permits queues due due_schedules",
        "tally begin_pruning prune_units hold_aged_runs prune_runs prune_budgets prune_summaries begin_marking marked_to mark_blobs sweep_blobs",  # retention
        "begin_export advance_export ended_runs ended_scopes ended_attempts ended_units events_of_attempts",  # traces
        "record record_many run runs count_runs statuses attempts backlog approvals count_approvals budgets_near_limit limits_in_use gates_in_use open_breakers stats machine",  # clients
    )
    for name in names.split()
)
"""What `act_out` and `search_unused` ask, among others."""


class Explained(NamedTuple):
    """A statement as Postgres would do it, or did it."""

    name: str
    plan: dict[str, Any]

    def nodes(self) -> Iterator[dict[str, Any]]:
        """Give every node of the plan."""
        waiting = [self.plan["Plan"]]
        while waiting:
            node = waiting.pop()
            waiting += node.get("Plans", ())
            yield node

    def read_whole(self) -> set[str]:
        """Name the tables that are read from end to end."""
        return {node["Relation Name"] for node in self.nodes() if node["Node Type"] == "Seq Scan"}

    def walked(self) -> set[str]:
        """Name the tables of which a whole index is read; that of live runs has only their status to look up by."""
        scans = [node for node in self.nodes() if "Index Name" in node and "Relation Name" in node]
        whole = [node for node in scans if "Index Cond" not in node or node["Index Name"] == "flujo_runs_live"]
        return {node["Relation Name"] for node in whole}


class Explainer:
    """Explains every statement of the store before it is executed, and what clients are made to ask by `Asking`.

    Args:
        url: of the database.
        settings: how the explaining connection plans: one of our statements, or None for Postgres' own settings.
        analyze: execute each statement, with what it takes, and undo it.
    """

    def __init__(self, url: str, *, settings: str | None = None, analyze: bool = False) -> None:
        self._connection = psycopg.connect(url, autocommit=True, row_factory=tuple_row)
        if settings is not None:
            self._connection.execute(statement(settings).text)
        self._settings, self._options = settings, "ANALYZE, BUFFERS, FORMAT JSON" if analyze else "FORMAT JSON"
        self._is_analyzing = analyze
        self.found: list[Explained] = []

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def watching(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """Explain what is executed in the block."""
        execute, execute_group = psycopg.RawCursor.execute, LoopConnection.execute

        def alone(cursor: Any, query: Any, params: Any = None, **rest: Any) -> Any:
            if name := _names().get(query):
                self._alone(cursor.connection, name, query, params or ())
            return execute(cursor, query, params, **rest)

        def group(connection: Any, calls: Sequence[Any], answered: Any, after: Sequence[Any]) -> None:
            self._group([*calls, *after])
            execute_group(connection, calls, answered, after)

        with patch.context() as patched:
            patched.setattr(psycopg.RawCursor, "execute", alone)
            patched.setattr(LoopConnection, "execute", group)
            yield

    def ask(self, request: Request[Any]) -> None:
        """Explain what a client asks, which it plans again each time."""
        connection = self._connection
        with connection.transaction(force_rollback=True):
            if request.bounds:
                connection.execute(
                    requests.statement(request.bounds.name, request.bounds.home), request.bounds.parameters
                )
            text = f"EXPLAIN ({self._options}) ".encode() + requests.statement(request.name, request.home)
            self._keep(request.name, connection.execute(text, request.parameters, prepare=False))

    def _alone(self, connection: Any, name: str, text: bytes, values: Sequence[Any]) -> None:
        """Explain on the store's own connection what is executed, for that may hold locks; what is not, elsewhere."""
        asked = connection if self._is_analyzing else self._connection
        with asked.transaction(force_rollback=True):
            self._explain(asked, name, text, values)

    def _group(self, calls: Sequence[Any]) -> None:
        with self._connection.transaction(force_rollback=True):
            if self._settings is not None:
                self._connection.execute(statement("group_settings").text)
            for name, parameters in calls:
                text, names = statement(name)
                casts = types(name)
                values = [sql.SQL("{}::" + casts[each]).format(parameters[each]) for each in names]
                self._explain(self._connection, name, text, values)

    def _explain(self, connection: Any, name: str, text: bytes, values: Sequence[Any]) -> None:
        cursor = psycopg.Cursor(connection, row_factory=tuple_row)
        given = sql.SQL(", ").join([each if isinstance(each, sql.Composable) else sql.Literal(each) for each in values])
        execute = sql.SQL("({})").format(given) if values else sql.SQL("")
        cursor.execute(b"PREPARE explained AS " + text, prepare=False)
        try:
            explain = sql.SQL("EXPLAIN ({}) EXECUTE explained{}").format(sql.SQL(self._options), execute)
            self._keep(name, cursor.execute(explain, prepare=False))
        finally:
            cursor.execute("DEALLOCATE explained", prepare=False)

    def _keep(self, name: str, cursor: Any) -> None:
        [[[plan]]] = cursor.fetchall()
        self.found.append(Explained(name, plan))


@cache
def _names() -> dict[bytes, str]:
    """The statements that workers execute, theirs and the client's, by what Postgres is given."""
    each = [(path.name, home) for home in (CLIENT, HOME) for path in files(home).joinpath("sql").iterdir()]
    named = [(name.removesuffix(".sql"), home) for name, home in each if name.endswith(".sql")]
    return {statement(*each, is_alone=True).text: each[0] for each in named}


class Asking(Postgres):
    """A setting whose clients' statements are explained too."""

    explain: Callable[[Request[Any]], None] = staticmethod(lambda _: None)

    def ask(self, request: Request[Any]) -> Any:
        self.explain(request)
        if request.bounds is None:
            return super().ask(request)
        return None


def ended_run(world: World) -> str:
    """A run of three steps under limits, from its enqueue to its end; return its id."""
    new = limited(world)
    at = new.first
    for _ in range(3):
        claim = world.stores.attempts.claim(at.key, "w1", max_lost=MAX_LOST, to_reserve=reserving(new))
        assert claim.fence is not None
        name = UnitName(f"{at.address}:{at.step}:1", b"0123456789abcdef", 0)
        unit = Unit(at.ticket.run, name, at.key, claim.fence, claim.claim_id, "tool")
        assert world.stores.units.settle([SettledUnit(unit, Packed.of("answer"))])
        decision = decided(new, succeeded(usage=SPENT), fence=claim.fence, at=at)
        assert world.commit(decision) == "merged"
        at = following(decision) if decision.next else at
    assert world.run(at.ticket.run).status == "succeeded"
    return at.ticket.run


def limited(world: World) -> NewRun:
    """A run of three steps under its own limit."""
    new = enqueued(pipeline_of("a", "b", "c"), context={"n": 0})
    run = new.first.ticket.run
    in_force = {"run": run, "limits": None, "tenant": "", "tenant_limits": None}
    return world.record(enqueued(pipeline_of("a", "b", "c"), context={"n": 0}, run_id=run, limits=in_force))


def reserving(new: NewRun) -> list[Reservation]:
    return [Reservation(f"run:{new.first.ticket.run}", Amount(tokens=20), None, 1_000)]


def act_out(world: World, groups: Grouped) -> None:
    """Do once all that is done all the time: enqueue, claim, merge, fan out, renew, sweep, list."""
    world.register_worker("w1", lease_s=3_600.0)
    _alone(world)
    _in_groups(world, groups)
    _fan_out(world)
    _lease_and_sweep(world)
    _read(world)


def _alone(world: World) -> None:
    new = world.record(enqueued(pipeline_of("a", "b"), context={"n": 0}))
    world.stores.backlog.mark_sent({new.first.key: 0.0})
    first = decided(new, succeeded(usage=SPENT), fence=world.claim(new))
    assert world.stores.attempts.claim(new.first.key, "w1", max_lost=MAX_LOST).refusal == "busy"
    assert world.commit(first) == "merged"
    at = following(first)
    assert world.conclude(new, succeeded(), fence=world.claim(at), at=at) == "merged"
    waits = world.record(enqueued(pipeline_of("a", "b")))
    assert world.commit(asking(waits.first, fence=world.claim(waits), question=ASKED | {"event": "go"})) == "merged"
    ended_run(world)


def _in_groups(world: World, groups: Grouped) -> None:
    ledger, news = groups.ledger, [enqueued(pipeline_of("a"), context={"n": 0}) for _ in range(GROUP)]
    world.setting.ask(requests.record_many(news, lambda _: None, grace_s=1.0))
    groups.together(*(ledger.claim(new.first.key, "w1") for new in news))
    groups.together(*(ledger.commit(decided(new, succeeded(usage=SPENT))) for new in news))
    under_limits = [limited(world) for _ in range(GROUP)]
    groups.together(*(ledger.claim(new.first.key, "w1", to_reserve=reserving(new)) for new in under_limits))
    groups.together(*(ledger.commit(decided(new, succeeded(usage=SPENT))) for new in under_limits))
    assert {world.attempts(new.first.ticket.run)[0].status for new in (*news, *under_limits)} == {"succeeded"}


def _fan_out(world: World) -> None:
    arms = fanned_out(world, 4, lanes=2)
    run = arms[0].ticket.run
    close_all(world, arms)
    assert joined(world, arms[0]).kind == "join"
    assert signal_join(world, arms[0])
    assert world.stores.scopes.scope(run, "f") is not None
    assert len(world.stores.scopes.children(run, "f")) == len(arms)
    assert not world.stores.scopes.aborted_among([(run, "f")])
    assert world.stores.scopes.closed_among([(run, "f")]) == {(run, "f")}


def _lease_and_sweep(world: World) -> None:
    stores, new = world.stores, world.record(enqueued(pipeline_of("a")))
    fence = world.claim(new)
    stores.leases.renew("w1", LEASE_S, {new.first.key: fence})
    stores.leases.release_unowned("w1", {new.first.key}, LEASE_S)
    stores.leases.neighbours("host")
    stores.backlog.begin_sweep("w1", 0.0)
    stores.retention.tally()
    stores.backlog.runs_to_stop(200)
    stores.scopes.orphaned_children(200)
    stores.backlog.poisoned(judge="w1", max_lost=MAX_LOST, limit=200)
    stores.scopes.aborted(200)
    stores.scopes.idle_lanes(200)
    stores.scopes.stranded(200)
    stores.plan_moves.parked(200)
    stores.plan_moves.parked_for_code(200)
    stores.scopes.missed_joins(200, 2.0)
    stores.backlog.hand_over_events(200)
    stores.backlog.expire_questions(200)
    stores.limits.offer_permits()
    stores.schedules.due(100)
    heads = dict.fromkeys(stores.backlog.queues())
    stores.backlog.due(BrokerSnapshot(stores.backlog.epoch_start("e"), heads), judge="w1", max_lost=MAX_LOST, limit=200)
    assert world.commit(decided(new, succeeded(), fence=fence)) == "merged"
    export = stores.exports.begin("w1", patience_s=60.0, margin_s=0.0)
    since = {kind: Position(export.now - timedelta(days=9), "") for kind in KINDS}
    ended = {kind: stores.exports.ended(kind, since[kind], export.until, 20) for kind in KINDS}
    stores.exports.events([each for each in ended["attempt"] if isinstance(each, EndedAttempt)], ["flujo.retry"])
    assert stores.exports.advance("w1", {kind: Position(export.until, "") for kind in KINDS}, refused=0)
    assert stores.retention.begin_pruning(0.0)
    stores.retention.prune_units(60.0, places=20, units=20)
    assert len(stores.retention.prune_runs([RetentionRule("succeeded", 3_600.0)], 5)) == 5
    stores.retention.prune_summaries(3_600.0, 5)


def search_unused(world: World) -> None:
    """Search large values that nothing refers to, as workers do once a day: every run is read, a few at a time."""
    world.stores.blobs.store([packed("unused")])
    while world.stores.retention.sweep_blobs(200, every_s=0.0, unused_s=0.0):
        pass


def _read(world: World) -> None:
    ask, new = world.setting.ask, world.record(enqueued(pipeline_of("a")))
    run = new.first.ticket.run
    for request in (
        requests.run(run),
        requests.runs(RunFilter()),
        requests.runs(RunFilter(status="running")),
        requests.runs(RunFilter(status="failed")),
        requests.count_runs(RunFilter(status="failed", pipeline="shapes")),
        requests.runs(RunFilter(pipeline="shapes")),
        requests.runs(RunFilter(status=("queued", "running")), before=(datetime.now(UTC), "")),
        requests.statuses([run]),
        requests.attempts(run),
        requests.backlog(),
        requests.approvals(RunFilter()),
        requests.count_approvals(RunFilter(status="paused")),
        requests.budgets_near_limit(),
        operator_requests.limits_in_use(),
        operator_requests.gates_in_use(),
        operator_requests.open_breakers(),
        requests.mark_sent({new.first.key: 0.0}),
        stats(RunFilter(since=timedelta(hours=1)), timeout_s=30),
        operator_requests.machine(HealthQuery(since_hours=24), Health()),
        operator_requests.machine(HealthQuery(limit=1), Health()),
    ):
        ask(request)
