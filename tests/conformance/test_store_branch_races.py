"""Real concurrency in fan-outs on a real Postgres: branches that close, take lanes, signal, abort and are cancelled all at once."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import psycopg
import pytest
from grouped import grouped
from trees import (
    FAN,
    asking,
    closing,
    concluded,
    fanned_out,
    fanning_out,
    join_of,
    joined,
    moved,
    opening,
    signal_join,
    work,
)
from worlds import MAX_LOST, ROUNDS, World, say, waits

from flujo_worker.domain.values import BranchClosed, SlotReleased, UpdateScope
from flujo_worker.store.postgres.bind import bind_decision
from tests.support.builders import enqueued, envelopes
from tests.support.fleet import wait_until

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("no_deadlock")]

MANY = 200
STRAY = """
SELECT a.key FROM flujo_attempts a LEFT JOIN flujo_scopes s ON s.run_id = a.run_id AND s.address = a.address AND s.status = 'open'
WHERE a.status IN ('ready', 'queued', 'running') AND s.address IS NULL
"""


@pytest.fixture
def world(postgres):
    postgres.empty()
    world = World(postgres)
    yield world
    assert postgres.rows(STRAY) == []  # whatever happened, no live attempt is in a scope that is closed


def run_of(at):
    return at.ticket.run


def statuses(world, at, address=FAN):
    return [row.status for row in world.stores.scopes.children(run_of(at), address)]


def joins(world, at):
    return [each.status for each in world.attempts(run_of(at)) if each.kind == "join"]


def claimed(world, arms):
    """Claim them all; give what each of them commits when it succeeds."""
    return [closing(arm, fence=world.claim(arm), lane=place) for place, arm in enumerate(arms)]


def test_two_hundred_branches_close_at_once(world):
    """They share no row, so none waits for another; the join then sees them all."""
    decisions = claimed(world, arms := fanned_out(world, MANY))
    began = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(world.commit, decisions))
    took = time.monotonic() - began
    print(f"{MANY} branches closed at once on 8 threads: {took * 1000:.0f} ms, {took / MANY * 1e6:.0f} µs each")
    assert verdicts == ["merged"] * MANY
    assert signal_join(world, arms[0])


def test_lanes_that_come_free_at_once_go_to_different_branches(world):
    """Two hundred branches on eight lanes: each is taken once, in order, and none is forgotten."""
    arms, began = fanned_out(world, MANY, lanes=8), time.monotonic()

    def run_lane(lane):
        """Close a branch, continue with the one that got its lane, until it stays empty."""
        ran, at = [], arms[lane]
        while at is not None:
            taken = world.stores.attempts.commit(closing(at, fence=world.claim(at), lane=lane)).taken
            ran.append(at.key)
            at = None if taken is None else world.stores.backlog.envelopes([taken])[0]
        return ran

    with ThreadPoolExecutor(8) as threads:
        ran = [key for lane in threads.map(run_lane, range(8)) for key in lane]
    print(f"{MANY} branches claimed and closed on 8 lanes: {(time.monotonic() - began) * 1000:.0f} ms")
    assert sorted(ran) == sorted(arm.key for arm in arms)
    assert signal_join(world, arms[0])


@pytest.mark.parametrize("table", ["flujo_attempts", "flujo_scopes"])
def test_a_lane_is_not_lost_to_somebody_elses_lock(world, postgres, table):
    """Two branches close while the one that waits is locked: a run must never be called stranded for that."""
    arms, scopes = fanned_out(world, 3, lanes=2), world.stores.scopes
    closings = claimed(world, arms[:2])
    with psycopg.connect(postgres.url) as somebody:
        lock = f"SELECT 1 FROM {table} WHERE run_id = %s AND address = %s FOR UPDATE"
        somebody.execute(lock, [run_of(arms[2]), arms[2].address])
        assert [world.commit(each) for each in closings] == ["merged"] * 2
        assert scopes.stranded(9) == []
        for each in scopes.idle_lanes(9):
            scopes.give_lane(*each)
        assert len(scopes.idle_lanes(9)) == 2
    for each in scopes.idle_lanes(9):
        scopes.give_lane(*each)
    assert scopes.idle_lanes(9) == []
    world.commit(closing(arms[2], fence=world.claim(arms[2]), lane=0))
    assert signal_join(world, arms[2])


def test_a_run_whose_lane_holder_is_gone_is_stranded(world, postgres):
    """A branch has the lane, and its attempt's row is gone: nothing will ever free it, so the run fails instead of waiting for ever."""
    arms, scopes = fanned_out(world, 2, lanes=1), world.stores.scopes
    with psycopg.connect(postgres.url) as connection:
        connection.execute("DELETE FROM flujo_attempts WHERE key = %s", [arms[0].key])
    assert (scopes.idle_lanes(9), scopes.stranded(9)) == ([], [run_of(arms[0])])


def test_a_damaged_lane_concerns_its_run_alone(world, postgres):
    damaged, arms = fanned_out(world, 2, lanes=1), fanned_out(world, 2, lanes=1)
    for each in (damaged[0], arms[0]):
        world.commit(closing(each, fence=world.claim(each), takes=False))
    with psycopg.connect(postgres.url) as connection:
        lanes = """UPDATE flujo_scopes SET lanes = '{"f": "x"}' WHERE run_id = %s AND address = %s"""
        connection.execute(lanes, [run_of(damaged[0]), damaged[0].address])
    assert (run_of(arms[0]), FAN, 0) in world.stores.scopes.idle_lanes(9)


def test_the_lane_of_a_branch_that_pauses_is_not_lost_to_somebody_elses_lock(world, postgres):
    """Its siblings do not wait until a person has answered."""
    arms, scopes = fanned_out(world, 2, lanes=1), world.stores.scopes
    pausing = asking(arms[0], fence=world.claim(arms[0]), lane_left=SlotReleased(FAN, 0, (arms[0].address,)))
    with psycopg.connect(postgres.url) as somebody:
        lock = "SELECT 1 FROM flujo_scopes WHERE run_id = %s AND address = %s FOR UPDATE"
        somebody.execute(lock, [run_of(arms[1]), arms[1].address])
        assert world.commit(pausing) == "merged"
    assert scopes.idle_lanes(9) == [(run_of(arms[0]), FAN, 0)]
    scopes.give_lane(run_of(arms[0]), FAN, 0)
    assert world.scope(run_of(arms[1]), arms[1].address).lanes == {FAN: 0}


def test_the_last_two_to_close_never_miss_the_ring_and_make_one_join(world, race):
    for _ in range(ROUNDS):
        arms = fanned_out(world, 2)

        def close(decision, arm):
            assert world.commit(decision) == "merged"
            return signal_join(world, arm)

        acts = [partial(close, each, arm) for each, arm in zip(claimed(world, arms), arms, strict=True)]
        assert any(race(*acts, partial(signal_join, world, arms[0], "sweeper")))
        assert joins(world, arms[0]) == ["ready"]
        assert [line.name for line in world.events(run_of(arms[0]))].count("join.rung") == 1


def test_whoever_rings_at_once_hears_of_the_join(world, race):
    """A row that another ring has just made is there for both."""
    for _ in range(ROUNDS):
        arms = fanned_out(world, 1)
        world.commit(*claimed(world, arms))
        assert race(*[partial(signal_join, world, arms[0])] * 4) == [True] * 4
        assert joins(world, arms[0]) == ["ready"]


def test_two_that_fail_at_once_end_the_fan_out_once(world, race):
    """Propagate: each marks, winds down and rings, as their workers would."""
    for _ in range(ROUNDS):
        arms = fanned_out(world, 5)

        def fail(arm, fence):
            decision = closing(arm, fence=fence, status="failed", aborts=True)
            assert world.commit(decision) == "merged"
            world.stores.scopes.wind_down_branches(run_of(arm), FAN)
            return signal_join(world, arm)

        race(*[partial(fail, arm, world.claim(arm)) for arm in arms[:2]])
        assert statuses(world, arms[0]) == ["failed"] * 2 + ["cancelled"] * 3
        assert joins(world, arms[0]) == ["ready"]


def test_where_no_chord_counts_the_last_two_to_close_make_one_join(world, database_url, race):
    """Two processes merge in groups of their own; the one that finds the fan-out closed signals."""
    with ExitStack() as stack:
        ledgers = [stack.enter_context(grouped(database_url, counts_chords=False)) for _ in range(2)]
        for _ in range(ROUNDS):
            arms = fanned_out(world, 2)

            def close(groups, merge, arm):
                [committed] = groups.together(groups.ledger.commit(merge))
                if committed is None:  # left out of the group: merged alone
                    assert world.commit(merge) == "merged"
                is_last = world.stores.scopes.closed_among([(run_of(arm), FAN)])
                return (committed.must_signal if committed else is_last) and signal_join(world, arm)

            assert any(race(*map(partial, [close] * 2, ledgers, claimed(world, arms), arms)))
            assert joins(world, arms[0]) == ["ready"]
            assert [line.name for line in world.events(run_of(arms[0]))].count("join.rung") == 1


@pytest.mark.parametrize("counts_chords", [True, False])
def test_an_abort_beside_the_last_branchs_merge_never_misses_the_signal(world, database_url, race, counts_chords):
    """Each signals what it knows: the abort's worker at once, the branch's if its merge answers that the join is due."""
    with grouped(database_url, counts_chords=counts_chords) as groups:
        for _ in range(ROUNDS):
            failing, last = arms = fanned_out(world, 2)
            abort = closing(failing, fence=world.claim(failing), status="failed", aborts=True)
            merge = closing(last, fence=world.claim(last), lane=1)

            def fail(abort=abort, arms=arms):
                assert world.commit(abort) == "merged"
                world.stores.scopes.wind_down_branches(run_of(arms[0]), FAN)
                signal_join(world, arms[0])

            def close(merge=merge, arms=arms):
                [committed] = groups.together(groups.ledger.commit(merge))
                if committed is None:  # left out, because the fan-out was locked: asked alone
                    assert world.commit(merge) == "merged"
                scopes = world.stores.scopes
                look = scopes.aborted_among if counts_chords else scopes.closed_among
                if committed.must_signal if committed else look([(run_of(arms[0]), FAN)]):
                    signal_join(world, arms[1])

            race(fail, close)
            assert joins(world, arms[0]) == ["ready"]


def test_winding_down_against_claims_closes_and_lanes(world, race):
    """Whatever a sibling was doing, it is closed in the end, by itself or from outside, and then there is one join."""
    ends = set()
    for _ in range(ROUNDS):
        arms = fanned_out(world, 6, lanes=4)
        running = claimed(world, arms[:2])
        world.commit(closing(arms[2], fence=world.claim(arms[2]), status="failed", aborts=True))
        race(
            *[partial(world.stores.attempts.commit, each) for each in running],
            partial(world.stores.attempts.claim, arms[3].key, "w1", max_lost=MAX_LOST, fan_outs=[FAN]),
            partial(world.stores.backlog.mark_sent, {arm.key: 0.0 for arm in arms}),
            *[partial(world.stores.scopes.wind_down_branches, run_of(arms[0]), FAN)] * 2,
        )
        while_open(world, arms)
        ends.add(tuple(statuses(world, arms[0])))
        assert signal_join(world, arms[0])
        assert joins(world, arms[0]) == ["ready"]
    assert all(end[2] == "failed" and end[:2] == ("succeeded",) * 2 for end in ends)


def while_open(world, arms):
    """What runs closes itself, as a worker would; then what is left is wound down."""
    for arm in arms:
        if world.status(arm) == "running":
            world.commit(closing(arm, status="cancelled", takes=False))
    world.stores.scopes.wind_down_branches(run_of(arms[0]), FAN)
    assert world.stores.scopes.aborted(9) == []


def test_winding_down_against_an_inner_ring_leaves_no_join_in_a_closed_scope(world, race):
    """The inner fan-out is closed by the outer one's abort, or joined; never both."""
    ends = set()
    for _ in range(ROUNDS):
        arms = fanned_out(world, 2)
        inner = f"{FAN}/b0/{FAN}"
        decision = fanning_out(arms[0], 1, address=inner, fence=world.claim(arms[0]))
        world.commit(decision)
        world.commit(*claimed(world, envelopes(decision)))
        world.commit(closing(arms[1], fence=world.claim(arms[1]), status="failed", aborts=True))
        wind_down = partial(world.stores.scopes.wind_down_branches, run_of(arms[0]), FAN)
        race(partial(signal_join, world, arms[0], fan_out=inner), wind_down)
        end = world.scope(run_of(arms[0]), inner).status, *joins(world, arms[0])
        assert end in {("open", "ready"), ("cancelled", "cancelled"), ("cancelled",)}
        ends.add(end)
    assert len(ends) > 1


def test_winding_down_against_a_step_that_goes_deeper(world, race):
    """A loop is entered while its fan-out is wound down: the new work stands in open scopes, all the way up."""
    for _ in range(ROUNDS):
        arms = fanned_out(world, 2)
        box = opening(f"{FAN}/b0/loop", arms[0].address, kind="loop")
        first = opening(f"{box.address}#1", box.address)
        deeper = concluded(arms[0], moved(arms[0]), fence=world.claim(arms[0]), opens=(box, first), next=(work(first),))
        world.commit(closing(arms[1], fence=world.claim(arms[1]), status="failed", aborts=True))
        verdict, _ = race(
            partial(world.commit, deeper), partial(world.stores.scopes.wind_down_branches, run_of(arms[0]), FAN)
        )
        assert verdict == "merged"
        rows = {world.scope(run_of(arms[0]), each).status for each in (first.address, box.address, arms[0].address)}
        alive = world.status(envelopes(deeper)[0]) == "ready"
        assert rows == ({"open"} if alive else {"cancelled"})


def test_a_cancel_against_closing_branches_that_take_lanes(world, race):
    """Cancel wins: what it acknowledged stays as it is, and nothing is left alive (prototype: 15 of 15 deadlocked parent first)."""
    verdicts = []
    for _ in range(ROUNDS):
        arms = fanned_out(world, 12, lanes=5)
        acts = [partial(world.stores.attempts.commit, each) for each in claimed(world, arms[:5])]
        *answers, (stopped, acknowledged) = race(*acts, partial(stop, world, run_of(arms[0])))
        verdicts += [answer.verdict for answer in answers]
        assert stopped
        assert world.picture(run_of(arms[0])) == acknowledged
        assert not {"ready", "queued", "running"} & {each.status for each in world.attempts(run_of(arms[0]))}
        assert not [row for row in world.tree(run_of(arms[0])) if row.status == "open"]
    assert set(verdicts) == {"merged", "stopped"}


def stop(world, run):
    return world.stores.backlog.stop(run, "cancelled", "enough"), world.picture(run)


def test_a_cancel_against_closes_that_climb(world, race):
    """Branches that close from three scopes down lock them deepest first, as the cancel does."""
    verdicts = set()
    for _ in range(ROUNDS):
        climbs = [climbing(world, arm, place) for place, arm in enumerate(fanned_out(world, 4))]
        run = climbs[0].notice.envelope.ticket.run
        *answers, (stopped, _) = race(*[partial(world.commit, each) for each in climbs], partial(stop, world, run))
        verdicts |= set(answers)
        assert stopped
        assert {row.status for row in world.tree(run)} <= {"succeeded", "cancelled"}
    assert verdicts == {"merged", "stopped"}


def climbing(world, arm, lane):
    """A branch is at the last step of a loop: what closes the iteration, the loop and the branch."""
    box = opening(f"{arm.address}/loop", arm.address, kind="loop")
    first = opening(f"{box.address}#1", box.address)
    begun = concluded(arm, moved(arm), fence=world.claim(arm), opens=(box, first), next=(work(first),))
    world.commit(begun)
    [at] = envelopes(begun)
    moves = [
        UpdateScope(address, 0, 1, "succeeded", merges=True) for address in (first.address, box.address, arm.address)
    ]
    return concluded(at, *moves, fence=world.claim(at), branch_end=BranchClosed(arm.address, FAN, lane))


def test_a_cancel_against_rings_leaves_no_join(world, race):
    for _ in range(ROUNDS):
        arms = fanned_out(world, 1)
        world.commit(*claimed(world, arms))
        rings = [partial(signal_join, world, arms[0])] * 2
        *_, (stopped, _) = race(*rings, partial(stop, world, run_of(arms[0])))
        assert stopped
        assert joins(world, arms[0]) in ([], ["cancelled"])


def test_a_cancel_against_an_abort_and_its_winding_down(world, race):
    for _ in range(ROUNDS):
        arms = fanned_out(world, 8, lanes=4)
        running = claimed(world, arms[1:3])
        failing = closing(arms[0], fence=world.claim(arms[0]), status="failed", aborts=True)

        def fail(failing=failing, arm=arms[0]):
            world.commit(failing)
            world.stores.scopes.wind_down_branches(run_of(arm), FAN)
            signal_join(world, arm)

        merges = [partial(world.stores.attempts.commit, each) for each in running]
        *_, (stopped, _) = race(*merges, fail, partial(stop, world, run_of(arms[0])))
        assert stopped
        assert {row.status for row in world.tree(run_of(arms[0]))} <= {"succeeded", "failed", "cancelled"}


def test_a_request_to_cancel_waits_for_a_fan_out_that_opens(world, database_url, held):
    """Also what reaches beyond one scope meets the cancel on one lock (ADR 15)."""
    new = world.record(enqueued())
    say(held, "conclude", bind_decision(fanning_out(new.first, 2, fence=world.claim(new))))
    asked = waits(database_url, partial(world.request_cancel, run_of(new.first)))
    held.commit()
    assert asked.result(timeout=60)
    assert [each.status for each in world.attempts(run_of(new.first))] == ["succeeded", "ready", "ready"]


@pytest.mark.parametrize("who", ["commit", "stop", "wind_down"])
def test_scopes_are_locked_deepest_first(world, database_url, held, who):
    """Law: who waits for a scope holds those beneath it, and none above it."""
    arms = fanned_out(world, 2)
    climb, run = climbing(world, arms[0], 0), run_of(arms[0])
    *below, top = [move.address for move in climb.moves]
    world.commit(closing(arms[1], fence=world.claim(arms[1]), lane=1, status="failed", aborts=True))
    acts = {
        "commit": partial(world.commit, climb),
        "stop": partial(world.stores.backlog.stop, run, "cancelled", "enough"),
        "wind_down": partial(world.stores.scopes.wind_down_branches, run, FAN),
    }
    held.execute("SELECT 1 FROM flujo_scopes WHERE run_id = %s AND address = %s FOR UPDATE", [run, top])
    acted = waits(database_url, acts[who])
    found = held.execute("SELECT address FROM flujo_scopes WHERE run_id = %s FOR UPDATE SKIP LOCKED", [run]).fetchall()
    free = {row["address"] for row in found}
    held.commit()
    acted.result(timeout=60)
    assert not free & set(below)
    assert {top, FAN, ""} <= free


def test_one_of_many_joins_wins(world, race):
    """The doorbell rang twice, on two workers: one has the work."""
    world.register_worker("w2", "w3")
    for _ in range(ROUNDS):
        arms = fanned_out(world, 1)
        world.commit(*claimed(world, arms))

        def answer(name, arm=arms[0]):
            signal_join(world, arm, "chord")
            return world.stores.attempts.claim(join_of(arm), name, max_lost=MAX_LOST).fence

        assert sorted(fence or 0 for fence in race(*[partial(answer, name) for name in ("w1", "w2", "w3")])) == [
            0,
            0,
            1,
        ]


def test_a_join_that_is_said_twice_is_done_once(world, race):
    for _ in range(ROUNDS):
        arms = fanned_out(world, 2)
        for decision in claimed(world, arms):
            world.commit(decision)
        join = joined(world, arms[0])
        moves = (moved(join, status="succeeded", merges=True), moved(world.scope(run_of(join)), cursor=2, merges=True))
        decision = concluded(join, *moves, fence=world.claim(join))
        assert sorted(race(*[partial(world.commit, decision)] * 3)) == ["merged", "repeated", "repeated"]
        assert world.scope(run_of(join)).version == 1


def test_a_ring_does_not_wait_for_the_merge_of_the_join(world, held):
    """Law of one lock order: the merge has its attempt and wants the fan-out, so who rings may not want them the other way round."""
    arms = fanned_out(world, 1)
    world.commit(*claimed(world, arms))
    signal_join(world, arms[0])
    world.stores.attempts.claim(join_of(arms[0]), "w1", max_lost=MAX_LOST)
    held.execute("UPDATE flujo_attempts SET status = 'succeeded', ended_at = now() WHERE key = %s", [join_of(arms[0])])
    with ThreadPoolExecutor(1) as thread:
        late = thread.submit(signal_join, world, arms[0], "sweeper")
        try:
            late.result(timeout=60)
        finally:
            held.rollback()


WAITING = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
HELD_UP = """
CREATE SEQUENCE rings_made;
CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS
$$ BEGIN IF nextval('rings_made') = 1 THEN PERFORM pg_advisory_xact_lock(42); END IF; RETURN NEW; END $$;
CREATE TRIGGER held_up BEFORE INSERT ON flujo_attempts FOR EACH ROW WHEN (NEW.kind = 'join') EXECUTE FUNCTION hold_up();
"""


@pytest.fixture
def held_up(database_url):
    """Hold up the first ring when it is about to insert the join, until the test releases the lock 42."""
    with psycopg.connect(database_url, autocommit=True) as gate:
        gate.execute(HELD_UP)
        gate.execute("SELECT pg_advisory_lock(42)")
        yield gate
        gate.execute("DROP FUNCTION hold_up CASCADE; DROP SEQUENCE rings_made")


def test_a_slow_ring_does_not_wait_for_the_merge_of_another_rings_join(world, database_url, held_up):
    """Law of one lock order: both look before either inserts; the other's join is merged while the slow one is held up."""
    arms = fanned_out(world, 1)
    world.commit(*claimed(world, arms))

    def ring_and_join():
        join = joined(world, arms[0])
        moves = (moved(join, status="succeeded", merges=True), moved(world.scope(run_of(join)), cursor=2, merges=True))
        return world.commit(concluded(join, *moves, fence=world.claim(join)))

    with ThreadPoolExecutor(2) as threads:
        slow = waits(database_url, lambda: signal_join(world, arms[0]))
        quick = threads.submit(ring_and_join)
        wait_until(lambda: len(held_up.execute(WAITING).fetchall()) == 2, 60)
        held_up.execute("SELECT pg_advisory_unlock(42)")
        assert quick.result(60) == "merged"
        slow.result(60)
    assert joins(world, arms[0]) == ["succeeded"]
