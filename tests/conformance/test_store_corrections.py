"""The correction ledger: the repairs of an outcome are recorded in the commit that merges it, once, or not at all (M-178, C-08, C-40)."""

from dataclasses import replace

import psycopg
import pytest
from trees import concluded, fanning_out, moved, opening
from worlds import LEASE_S, World

from flujo_client.contract.outcome import Correction
from flujo_worker import failpoints
from flujo_worker.domain.values import ChildRun, NextAttempt
from tests.support.builders import decided, enqueued, failed, following, packed, pipeline_of, succeeded

HOSTILE = "a\x00b\ud800c\U0001f41d"
FIRST = Correction("a", "writer", "openai:gpt", "9f" * 32, "2", "semantic", 3, ("strip-fence", "str->int /n"), 812.5)
SECOND = Correction("a", None, None, None, "2", "syntactic", 1, (), 0.0)
BOTH = (FIRST, SECOND)


@pytest.fixture
def new(world):
    return world.record(enqueued(pipeline_of("a", "b", max_retries=3), context={"n": 1}))


def run_of(new):
    return new.first.ticket.run


def repaired(outcome=None, corrections=BOTH):
    """An outcome, a success unless given, that came with repairs."""
    return replace(outcome or succeeded("one"), corrections=corrections)


def plain(new, outcome, fence=1):
    """A merge of an ordinary step."""
    return decided(new, outcome, fence=fence)


def tree(new, outcome, fence=1):
    """A merge that reaches beyond one scope."""
    decision = fanning_out(new.first, 2, fence=fence)
    return replace(decision, notice=replace(decision.notice, outcome=outcome))


both_statements = pytest.mark.parametrize("merge", [plain, tree])


def kept(world, new):
    return [each.correction for each in world.corrections(run_of(new))]


@both_statements
def test_what_was_repaired_is_kept_with_the_merge(world, new, merge):
    """M-178: every field of the seed's, in the order of the repairs."""
    before = world.now()
    assert world.commit(merge(new, repaired(), world.claim(new))) == "merged"
    first, second = world.corrections(run_of(new))
    assert (first.correction, second.correction) == BOTH
    assert (first.run_id, first.attempt, first.fence) == (run_of(new), new.first.key, 1)
    assert first.id < second.id
    assert abs(first.timestamp.timestamp() - before) < 5


@pytest.mark.parametrize("failure", [failed(), failed("validation", retryable=False)], ids=["retried", "for good"])
def test_a_failed_attempts_repairs_are_kept_alike(world, new, failure):
    assert world.conclude(new, repaired(failure), fence=world.claim(new)) == "merged"
    assert kept(world, new) == list(BOTH)


def test_each_attempt_keeps_its_own(world, new):
    decision = decided(new, repaired(corrections=(FIRST,)), fence=world.claim(new))
    world.commit(decision)
    after = following(decision)
    world.conclude(new, repaired(corrections=(SECOND,)), at=after, fence=world.claim(after))
    kept_of = {each.attempt: each.correction for each in world.corrections(run_of(new))}
    assert kept_of == {new.first.key: FIRST, after.key: SECOND}


@both_statements
def test_an_outcome_without_repairs_keeps_nothing(world, new, merge):
    assert world.commit(merge(new, succeeded(), world.claim(new))) == "merged"
    assert world.corrections(run_of(new)) == []


def test_a_child_runs_repairs_are_its_own(world, new):
    """What a decision begins has no part in what came before it."""
    first = NextAttempt("legal/body", "x", 1, "q", packed("in"), None, 0)
    child_run = ChildRun(
        replace(new.first.ticket, run=f"{run_of(new)}.legal", root="legal/body"), "legal", "contracts", first
    )
    box = opening("legal", "", kind="nested", step="legal", name="legal", waiting=True)
    world.commit(
        concluded(
            new.first,
            moved(new.first),
            fence=world.claim(new),
            outcome=repaired(corrections=(FIRST,)),
            opens=(box,),
            child_run=child_run,
        )
    )
    [child] = world.stores.backlog.envelopes([f"{child_run.run}:legal/body:x:1"])
    outcome = repaired(corrections=(SECOND,))
    world.commit(concluded(child, moved(child, cursor=1), fence=world.claim(child), outcome=outcome))
    assert kept(world, new) == [FIRST]
    assert [(each.attempt, each.correction) for each in world.corrections(child_run.run)] == [(child.key, SECOND)]


def test_no_text_is_too_hostile_to_be_kept(world, new):
    """M-428: a ledger must not keep a result from being merged."""
    hostile = Correction(*[HOSTILE] * 6, 1, (HOSTILE,), float("nan"))
    assert world.conclude(new, repaired(corrections=(hostile,)), fence=world.claim(new)) == "merged"
    assert "\U0001f41d" in world.corrections(run_of(new))[0].correction.transforms[0]


@both_statements
def test_the_same_outcome_twice_is_kept_once(world, new, merge):
    decision = merge(new, repaired(), world.claim(new))
    assert [world.commit(decision) for _ in range(3)] == ["merged", "repeated", "repeated"]
    assert kept(world, new) == list(BOTH)


@both_statements
def test_a_zombies_repairs_are_not_kept(world, new, merge):
    """Law: a late outcome changes nothing; the attempt runs under a newer fence."""
    late = world.claim(new)
    world.pass_time(LEASE_S + 1)
    world.register_worker("w2")
    fence = world.claim(new, "w2")
    assert world.commit(merge(new, repaired(corrections=(FIRST,)), late)) == "stale"
    assert world.corrections(run_of(new)) == []
    assert world.commit(merge(new, repaired(corrections=(SECOND,)), fence)) == "merged"
    assert world.commit(merge(new, repaired(corrections=(FIRST,)), late)) == "stale"
    assert [(each.fence, each.correction) for each in world.corrections(run_of(new))] == [(fence, SECOND)]


@both_statements
def test_nothing_is_kept_when_the_scope_has_moved_on(world, new, merge):
    decision = merge(new, repaired(), world.claim(new))
    decision = replace(decision, moves=tuple(replace(move, version=7) for move in decision.moves))
    assert world.commit(decision) == "stale"
    assert world.corrections(run_of(new)) == []
    assert world.status(new) == "running"


@both_statements
@pytest.mark.parametrize("asked", ["request", "stop"])
def test_nothing_is_kept_after_a_cancel(world, new, merge, asked):
    fence = world.claim(new)
    if asked == "request":
        world.request_cancel(run_of(new))
    else:
        world.stores.backlog.stop(run_of(new), "cancelled", "enough")
    assert world.commit(merge(new, repaired(), fence)) == "stopped"
    assert world.corrections(run_of(new)) == []


def test_nothing_is_kept_of_an_unknown_attempt(world):
    new = enqueued()
    assert world.conclude(new, repaired()) == "stale"
    assert world.corrections(run_of(new)) == []


ONCE = """
    CREATE SEQUENCE times;
    CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('times') = 1 THEN RAISE EXCEPTION 'chosen as the victim' USING ERRCODE = 'deadlock_detected'; END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER fail_once BEFORE INSERT ON flujo_correction_ledger FOR EACH ROW EXECUTE FUNCTION fail_once();
"""


@pytest.fixture
def real(postgres):
    """A run on Postgres, which the worker `w1` is about to work on."""
    postgres.empty()
    return World(postgres)


@pytest.fixture
def sql(database_url):
    """Says something to the database behind the store's back."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection.execute


@pytest.fixture
def no_ledger(sql):
    """Whoever so much as names the table fails."""
    sql("ALTER TABLE flujo_correction_ledger RENAME TO hidden")
    yield
    sql("ALTER TABLE hidden RENAME TO flujo_correction_ledger")


@pytest.fixture
def a_deadlock(sql):
    """The first row of the ledger is the victim of a deadlock; the sequence is not rolled back with it."""
    sql(ONCE)
    yield
    sql("DROP TRIGGER fail_once ON flujo_correction_ledger; DROP FUNCTION fail_once; DROP SEQUENCE times")


@pytest.fixture
def a_lost_answer(tmp_path):
    """The connection is lost after the commit, once."""
    failpoints.arm(f"answer_lost:lose:{tmp_path / 'lost'}")
    yield
    failpoints.arm("")


@pytest.mark.services
@both_statements
def test_who_repairs_nothing_never_touches_the_table(real, no_ledger, merge):
    """M-178: off, no row and no access."""
    new = real.record(enqueued(pipeline_of("a", "b")))
    assert real.commit(merge(new, succeeded(), real.claim(new))) == "merged"


@pytest.mark.services
@both_statements
def test_both_are_said_again_when_the_second_meets_a_deadlock(real, a_deadlock, merge):
    """The merge is undone with it, and the retry is of both."""
    new = real.record(enqueued(pipeline_of("a", "b")))
    assert real.commit(merge(new, repaired(), real.claim(new))) == "merged"
    assert kept(real, new) == list(BOTH)
    assert real.status(new) == "succeeded"


@pytest.mark.services
@both_statements
def test_an_answer_that_was_lost_keeps_nothing_twice(real, a_lost_answer, merge):
    new = real.record(enqueued(pipeline_of("a", "b")))
    assert real.commit(merge(new, repaired(), real.claim(new))) == "repeated"
    assert kept(real, new) == list(BOTH)


@pytest.mark.services
def test_repairs_are_kept_if_and_only_if_the_merge_beat_the_cancel(real, race):
    """The cancel waits for the whole transaction, or comes before all of it (ADR 15)."""
    verdicts = set()
    for _ in range(40):
        new = real.record(enqueued(pipeline_of("a", "b")))
        decision = plain(new, repaired(), real.claim(new))
        verdict, _, again = race(
            lambda decision=decision: real.commit(decision),
            lambda new=new: real.stores.backlog.stop(run_of(new), "cancelled", "enough"),
            lambda decision=decision: real.commit(decision),
        )
        verdicts |= {verdict, again}
        assert kept(real, new) == (list(BOTH) if "merged" in (verdict, again) else [])
    assert verdicts == {"merged", "repeated", "stopped"}


@pytest.mark.services
def test_a_run_that_is_deleted_takes_its_rows_with_it(real, sql):
    gone, stays = (real.record(enqueued(pipeline_of("a", "b"))) for _ in range(2))
    for new in (gone, stays):
        real.conclude(new, repaired(), fence=real.claim(new))
    sql("DELETE FROM flujo_runs WHERE id = %s", [run_of(gone)])
    assert (kept(real, gone), kept(real, stays)) == ([], list(BOTH))
