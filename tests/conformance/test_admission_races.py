"""Admission under real concurrency: enqueues, ends, cancels and admissions on the same gates; never a place too many, never a run forgotten."""

from contextlib import suppress

import psycopg
import pytest
from psycopg.rows import dict_row
from worlds import MAX_LOST, ROUNDS, Postgres, World

from flujo_client.contract.admission import Gate
from flujo_client.errors import AdmissionRefused
from tests.support.builders import enqueued, succeeded

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("no_deadlock")]

WATCH = """
CREATE TABLE IF NOT EXISTS watched_places (gate text, taken bigint);
TRUNCATE watched_places;
CREATE OR REPLACE FUNCTION watch_places() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO watched_places SELECT new.gate, count(*) FROM flujo_gate_places p WHERE p.gate = new.gate;
    RETURN new;
END $$;
CREATE OR REPLACE TRIGGER watch_places AFTER INSERT ON flujo_gate_places FOR EACH ROW EXECUTE FUNCTION watch_places();
"""
MOST = 2


@pytest.fixture
def world(postgres):
    postgres.empty()
    postgres.execute(WATCH)
    yield World(postgres)
    postgres.execute("DROP TRIGGER watch_places ON flujo_gate_places")


@pytest.fixture
def clients(postgres, database_url):
    """Settings with a connection each, so that their enqueues run at the same time."""
    made = [Postgres(postgres.stores, database_url) for _ in range(4)]
    yield made
    for each in made:
        each.close()


def admit_all(world):
    """Admit until nothing follows; give the runs that begin."""
    admitted, again = world.stores.admission.admit()
    while again:
        keys, again = world.stores.admission.admit((), again=again)
        admitted = [*admitted, *keys]
    return admitted


def most_taken(postgres):
    return max(row["taken"] for row in postgres.rows("SELECT taken FROM watched_places"))


def test_no_gate_has_a_run_too_many_and_all_runs_end(world, postgres, clients, race):
    """SYS-19: two gates, in either order; runs come, end and are cancelled while others are admitted."""
    gates = [Gate("limit 'a'", MOST), Gate("limit 'b'", MOST)]
    for number in range(ROUNDS):
        world.register_worker("w1")
        names = [f"run_{number}_{place}" for place in range(4)]
        news = [
            enqueued(run_id=name, gates=tuple(gates if place % 2 else gates[::-1])) for place, name in enumerate(names)
        ]
        # each round has the places of the one before, which end meanwhile
        held = postgres.rows("SELECT DISTINCT run_id FROM flujo_gate_places ORDER BY run_id")

        def end(runs=tuple(row["run_id"] for row in held), number=number):
            for place, run in enumerate(runs):
                if (place + number) % 3 == 0:
                    world.stores.backlog.stop(run, "cancelled", "enough")
                else:
                    perform(world, run)
            world.stores.admission.admit(runs)

        race(
            *(lambda client=client, new=new: client.record(new) for client, new in zip(clients, news, strict=True)),
            end,
            world.stores.admission.admit,
            lambda before=number - 1: world.request_cancel(f"run_{before}_3"),
        )
        assert most_taken(postgres) <= MOST
    while left := postgres.rows("SELECT id FROM flujo_runs WHERE ended_at IS NULL ORDER BY id"):
        for run, status in world.stores.backlog.runs_to_stop(100):
            world.stores.backlog.stop(run, status, "asked")
        placed = [
            row["run_id"] for row in postgres.rows("SELECT DISTINCT run_id FROM flujo_gate_places ORDER BY run_id")
        ]
        for run in placed:
            perform(world, run)
        admitted = admit_all(world)
        assert admitted or not postgres.rows("SELECT 1 FROM flujo_waiting_runs"), left
    assert most_taken(postgres) == MOST
    assert postgres.rows("SELECT 1 FROM flujo_waiting_runs UNION ALL SELECT 1 FROM flujo_gate_places") == []


def perform(world, run):
    new = enqueued(run_id=run)
    claim = world.stores.attempts.claim(new.first.key, "w1", max_lost=MAX_LOST)
    if claim.fence is not None:
        world.conclude(new, succeeded(), fence=claim.fence)


def test_of_many_that_come_at_once_one_is_the_singletons(world, postgres, clients, race):
    for number in range(ROUNDS):
        gate = Gate(f"singleton '{number}'", 1, policy="return")
        news = [enqueued(run_id=f"once_{number}_{place}", gates=(gate,)) for place in range(4)]
        race(*(lambda client=client, new=new: client.record(new) for client, new in zip(clients, news, strict=True)))
        assert len(postgres.rows("SELECT id FROM flujo_runs WHERE id LIKE %(like)s", like=f"once_{number}_%")) == 1


def test_of_many_that_come_at_once_as_many_are_refused_as_are_beyond(world, postgres, clients, race):
    for number in range(ROUNDS):
        gate = Gate(f"limit '{number}'", 3, policy="drop")
        news = [enqueued(run_id=f"drop_{number}_{place}", gates=(gate,)) for place in range(4)]

        def record(client, new):
            with suppress(AdmissionRefused):
                client.record(new)
                return True
            return False

        taken = race(
            *(lambda client=client, new=new: record(client, new) for client, new in zip(clients, news, strict=True))
        )
        assert sum(taken) == 3


def test_an_admission_waits_for_no_one_who_has_a_gate_locked(world, postgres, database_url):
    """An enqueue in a caller's transaction that stays open holds up its own gate, and no other."""
    for name in ("a", "b"):
        world.record(enqueued(run_id=f"{name}0", gates=(Gate(f"limit '{name}'", 1),)))
        world.record(enqueued(run_id=f"{name}1", gates=(Gate(f"limit '{name}'", 1),)))
        perform(world, f"{name}0")
    with psycopg.connect(database_url, row_factory=dict_row) as held:
        held.execute("SELECT 1 FROM flujo_gates WHERE name = 'limit ''a''' FOR UPDATE")
        keys, again = world.stores.admission.admit()
        assert [key.split(":")[0] for key in keys] == ["b1"]
        assert "limit 'a'" in again
    assert [key.split(":")[0] for key in admit_all(world)] == ["a1"]
