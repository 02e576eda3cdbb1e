"""Commits that reach beyond one scope: many moves, openings, rows that are held; all of it or nothing."""

from dataclasses import replace

import pytest
from trees import FAN, concluded, fanned_out, fanning_out, moved, opening, work
from worlds import World

from flujo_client.contract.outcome import Fault
from flujo_worker.domain.values import BranchClosed, EndRun
from flujo_worker.store.shared_rules import GRACE_PER_ROW_S, GRACE_S
from tests.support.builders import SPENT, enqueued, envelopes, failed, packed, pipeline_of, succeeded

FAULT = Fault("agent", "ValueError", "no", "it broke")
LOOP = "loop"
INNER = "loop#1"


@pytest.fixture
def new(world):
    return world.record(enqueued(pipeline_of("a", LOOP), context={"n": 0}))


@pytest.fixture
def first_envelopes(world, new):
    """The first attempts in the first iteration of a loop, three scopes one above the other, and in a scope next to it."""
    box = opening(LOOP, "", kind="loop", step=LOOP, name=LOOP, cursor=1)
    first, beside = opening(INNER, LOOP, step=LOOP, name=INNER, place=1), opening("beside", "")
    rest = {"opens": (box, first, beside), "next": (work(first), work(beside))}
    decision = concluded(new.first, moved(new.first, cursor=1), fence=world.claim(new), **rest)
    world.commit(decision)
    return envelopes(decision)


@pytest.fixture
def inner(first_envelopes):
    """The one in the iteration."""
    return first_envelopes[0]


def run_of(at):
    return at.ticket.run


def climb(world, inner, **changes):
    """Each scope from the iteration up to the root, as moves; `changes` of the root."""
    rows = [world.scope(run_of(inner), address) for address in (INNER, LOOP, "")]
    return moved(rows[0], cursor=1), moved(rows[1]), moved(rows[2], **changes)


def test_what_is_opened_is_read_back_as_it_was_said(world, new):
    lanes = {"f": 2, "f/b/g": 0}
    given = opening(
        "f/b", "f", kind="loop", step="g", name="b", place=4, lanes=lanes, cursor=3, version=7, metadata={"k": [1]}
    )
    world.commit(concluded(new.first, moved(new.first), fence=world.claim(new), opens=(given,)))
    row = world.scope(new.first.ticket.run, "f/b")
    for name in (
        "address",
        "parent",
        "kind",
        "step",
        "name",
        "place",
        "output",
        "context",
        "lanes",
        "cursor",
        "metadata",
    ):
        assert getattr(row, name) == getattr(given, name), name
    assert (row.status, row.version, row.patch, row.fault) == ("open", 7, None, None)


def test_the_root_is_a_sequence_below_nothing(world, new):
    root = world.scope(new.first.ticket.run)
    assert (root.parent, root.kind, root.step, root.name, root.place, root.lanes) == (
        None,
        "sequence",
        None,
        None,
        0,
        {},
    )
    assert (root.output, root.context, root.status) == (new.first.input, new.first.context, "open")


def test_a_scope_may_be_opened_and_closed_by_one_decision(world, new):
    given = opening("p", "", kind="parallel", status="failed", fault=FAULT, context=None)
    world.commit(concluded(new.first, moved(new.first), fence=world.claim(new), opens=(given,)))
    row = world.scope(new.first.ticket.run, "p")
    assert (row.status, row.fault, row.context) == ("failed", FAULT, None)
    assert world.stores.scopes.is_last_of_lane(new.first.ticket.run, "p", new.first.key)


def test_children_come_in_their_order_and_without_contexts(world):
    arms = fanned_out(world, 12)
    rows = world.stores.scopes.children(run_of(arms[0]), FAN)
    assert [row.address for row in rows] == [f"{FAN}/b{place}" for place in range(12)]
    assert {row.context for row in rows} == {None}
    assert world.stores.scopes.children(run_of(arms[0]), "") == [world_row(world, arms[0], FAN)]


def world_row(world, at, address):
    return replace(world.scope(run_of(at), address), context=None)


def test_an_unknown_scope_is_none_and_has_no_children(world, new):
    assert world.stores.scopes.scope(new.first.ticket.run, "nowhere") is None
    assert world.stores.scopes.children("run_none", "") == []


def test_envelopes_are_rebuilt_in_the_order_they_are_asked_for(world):
    arms = fanned_out(world, 4)
    keys = [arm.key for arm in reversed(arms)]
    assert world.stores.backlog.envelopes([*keys, "run_none::a:1"]) == arms[::-1]
    assert world.stores.backlog.envelopes([]) == []


def test_the_sweeper_rebuilds_lanes_and_kinds(world, new):
    scope = opening("c", "", kind="sequence", lanes={"f": 1})
    decision = concluded(
        new.first, moved(new.first), fence=world.claim(new), opens=(scope,), next=(work(scope, kind="start"),)
    )
    world.commit(decision)
    world.pass_time(GRACE_S + 1)
    [due] = world.due()
    assert [due.envelope] == envelopes(decision)
    assert due.envelope.key.endswith(":c:s:start")


def test_scopes_above_move_with_the_attempts_own(world, inner):
    """One commit closes the iteration, counts in the loop, and leaves the root as it is."""
    own, box, root = (world.scope(run_of(inner), address) for address in (INNER, LOOP, ""))
    moves = (
        moved(own, cursor=1, status="succeeded", merges=True, output=packed("done"), drops_context=True),
        moved(box, cursor=2, merges=True, output=packed("two"), context=packed({"n": 2}), metadata={"iterations": 1}),
        moved(root),
    )
    assert world.commit(concluded(inner, *moves, fence=world.claim(inner))) == "merged"
    own, box, root_after = (world.scope(run_of(inner), address) for address in (INNER, LOOP, ""))
    assert (own.status, own.cursor, own.version, own.output, own.context) == ("succeeded", 1, 1, packed("done"), None)
    assert (box.status, box.cursor, box.version, box.output) == ("open", 2, 1, packed("two"))
    assert (box.context, box.metadata) == (packed({"n": 2}), {"iterations": 1})
    assert root_after == root


def test_what_a_move_does_not_name_stays(world, inner):
    """Metadata is added to; a fault and a patch stay once they are there."""
    first, second = {"iterations": 1, "by": "x"}, {"iterations": 2}
    own = moved(inner, metadata=first, fault=FAULT, patch=packed("p"), merges=True)
    row = work(opening(INNER, LOOP), "t", version=1)
    decision = concluded(inner, own, fence=world.claim(inner), next=(row,))
    world.commit(decision)
    [after] = envelopes(decision)
    world.commit(concluded(after, moved(after, metadata=second), fence=world.claim(after)))
    row = world.scope(run_of(inner), INNER)
    assert (row.metadata, row.fault, row.patch) == ({"iterations": 2, "by": "x"}, FAULT, packed("p"))
    assert (row.output, row.context) == (inner.input, inner.context)


@pytest.mark.parametrize("where", [INNER, LOOP, ""])
@pytest.mark.parametrize("wrong", ["version", "closed", "missing"])
def test_if_one_scope_is_not_as_it_was_read_nothing_is_applied(world, inner, first_envelopes, where, wrong):
    """The versions that were read are checked in the commit, of all scopes that move."""
    moves = climb(world, inner, cursor=1, status="succeeded", output=packed("end"))
    fence, keyed = world.claim(inner), {move.address: move for move in moves}
    if wrong == "version":
        keyed[where] = replace(keyed[where], version=7)
    if wrong == "missing":
        keyed[where] = replace(keyed[where], address=f"{where}x")
    if wrong == "closed":
        shut(world, first_envelopes[1], where)
    before = world.picture(run_of(inner))
    extra = opening("x", "")

    decision = concluded(
        inner,
        *keyed.values(),
        fence=fence,
        opens=(extra,),
        next=(work(extra),),
        branch_end=BranchClosed(INNER, LOOP, 0, aborts=True),
        end=EndRun("succeeded"),
        outcome=succeeded(usage=SPENT),
    )
    assert world.commit(decision) == "stale"
    assert world.picture(run_of(inner)) == before
    assert not world.stores.scopes.aborted_among([(run_of(inner), LOOP)])
    assert world.run(run_of(inner)).tokens == 15


def shut(world, at, address):
    """Close a scope by an attempt that stands elsewhere."""
    row = world.scope(run_of(at), address)
    decision = concluded(at, moved(at), moved(row, status="cancelled"), fence=world.claim(at))
    assert world.commit(decision) == "merged"


def test_a_run_may_end_from_deep_inside(world, new, inner):
    """A failure climbs up to the root in one commit."""
    moves = [replace(move, status="failed", fault=FAULT) for move in climb(world, inner)]
    end = EndRun("failed", "step 'a' failed", FAULT)
    world.commit(concluded(inner, *moves, fence=world.claim(inner), close="failed", outcome=failed(), end=end))
    assert [world.scope(run_of(inner), address).status for address in (INNER, LOOP, "")] == ["failed"] * 3
    run = world.run(run_of(inner))
    assert (run.status, run.error, run.is_live) == ("failed", FAULT, False)
    assert run.context == new.first.context


def test_said_twice_it_is_done_once(world, new):
    decision = fanning_out(new.first, 3, lanes=2, fence=world.claim(new))
    world.commit(decision)
    before = world.picture(new.first.ticket.run)
    assert world.commit(decision) == "repeated"
    assert world.picture(new.first.ticket.run) == before


def test_the_publisher_of_many_rows_has_longer(world):
    """Protocol: 1 s and 5 ms for each row of the batch, so that the sweeper does not race a long fan-out."""
    fanned_out(world, 400)
    world.pass_time(GRACE_S + 0.3)
    assert world.due(limit=1000) == []
    world.pass_time(400 * GRACE_PER_ROW_S)
    assert len(world.due(limit=1000)) == 400


def test_what_is_held_is_never_due(world):
    arms = fanned_out(world, 5, lanes=2)
    world.pass_time(10 * 365 * 86_400)
    due = [each.envelope.address for each in world.due(epoch=world.now() + 9, heads={"flujo.attempts": None})]
    assert sorted(due) == [arm.address for arm in arms[:2]]
    assert [world.status(arm) for arm in arms] == ["queued", "queued", "ready", "ready", "ready"]


def test_a_branch_that_is_held_has_no_lane_yet(world):
    arms = fanned_out(world, 3, lanes=2)
    assert [row.lanes for row in world.stores.scopes.children(run_of(arms[0]), FAN)] == [{FAN: 0}, {FAN: 1}, {}]


def test_a_long_address_and_hostile_metadata_are_no_matter(world, new):
    """M-428."""
    deep = "/".join(["ü" * 40] * 12)
    given = opening(deep, "", metadata={"a\x00": "\ud800"}, fault=replace(FAULT, message="a\x00b"))
    decision = concluded(new.first, moved(new.first), fence=world.claim(new), opens=(given,))
    assert world.commit(decision) == "merged"
    assert world.scope(new.first.ticket.run, deep).fault.feedback == "it broke"


@pytest.mark.services
def test_what_was_answered_while_deciding_is_kept_with_the_attempt(postgres):
    """For a replay without user code."""
    world = World(postgres)
    new = world.record(enqueued(pipeline_of("a")))
    answers = ({"role": "exit_condition", "answer": True}, {"role": "a\x00", "answer": None})
    world.commit(concluded(new.first, moved(new.first), fence=world.claim(new), answers=answers))
    [row] = postgres.rows("SELECT answers FROM flujo_attempts WHERE key = %(key)s", key=new.first.key)
    assert [each["answer"] for each in row["answers"]] == [True, None]
