"""Why a run is where it is, as data on its row and on those of its attempts: set when it should be, and null again."""

from dataclasses import replace
from datetime import datetime

import pytest
from test_store_child_runs import beginning, first_of
from test_store_plan_moves import carry_on, plan_of
from trees import concluded, moved
from worlds import MAX_LOST

from flujo_client.contract.admission import Gate
from flujo_client.contract.code import ParkCause
from flujo_client.contract.outcome import Event, Fault
from flujo_worker.domain.permit import PermitRequest
from flujo_worker.domain.values import CloseAttempt, EndRun, NextAttempt
from flujo_worker.ports import ClaimId
from flujo_worker.store.postgres.blobs import Recent
from tests.support.builders import SPENT, decided, enqueued, failed, following, packed, pipeline_of, succeeded

FAULT = Fault("system", "X", "broken", "broken")
DAY_S = 86_400.0


def run_of(new):
    return new.first.ticket.run


@pytest.fixture
def new(world):
    return world.record(enqueued(pipeline_of("a", "b", max_retries=1)))


def test_a_failed_run_names_the_attempt_whose_error_ended_it(world, new):
    first = decided(new, failed(), fence=world.claim(new))
    world.commit(first)
    assert world.run(run_of(new)).failed_key is None
    last = following(first)
    world.conclude(new, failed(), at=last, fence=world.claim(last))
    run = world.run(run_of(new))
    assert (run.status, run.failed_key, run.error.key) == ("failed", last.key, last.key)


def test_a_run_that_succeeded_names_none(world):
    new = world.record(enqueued())
    world.conclude(new, succeeded(), fence=world.claim(new))
    assert world.run(run_of(new)).failed_key is None


def test_a_run_whose_child_run_failed_names_the_attempt_in_that(world):
    new = world.record(enqueued(pipeline_of("a", "legal", "b")))
    begun = beginning(new.first, fence=world.claim(new))
    world.commit(begun)
    child = first_of(world, begun)
    outcome = failed(key=child.key)
    ended = EndRun("failed", "step 'x' failed", outcome.fault)
    move = moved(child, status="failed", fault=outcome.fault, merges=True)
    world.commit(concluded(child, move, fence=world.claim(child), close="failed", end=ended, outcome=outcome))
    found = world.stores.scopes.child_run(child.ticket.run)
    assert (found.fault.key, world.run(child.ticket.run).failed_key) == (child.key, child.key)


@pytest.mark.parametrize("at", [True, False])
def test_a_run_that_is_broken_off_names_the_attempt_that_met_it(world, new, at):
    world.claim(new)
    assert world.stores.attempts.break_off(run_of(new), FAULT, at=ClaimId(new.first.key) if at else None)
    world.stores.backlog.stop(run_of(new), "failed", "no")
    assert world.run(run_of(new)).failed_key == (new.first.key if at else None)


def park(world, new, **rest):
    world.stores.plan_moves.park(ClaimId(new.first.key, world.claim(new)), "its key is not here", **rest)
    return world.run(run_of(new)).parked


@pytest.mark.parametrize("cause", [ParkCause("key", "2026a"), ParkCause("import", "no module"), ParkCause("pinned")])
def test_a_parked_run_has_the_kind_and_the_time(world, new, cause):
    since = world.now()
    found = park(world, new, cause=cause)
    assert found.keys() == {"kind", "what", "at"}
    assert found["kind"] == cause.kind
    assert found["what"] == {"key": "2026a", "import": "no module", "pinned": "its key is not here"}[cause.kind]
    assert datetime.fromisoformat(found["at"]).timestamp() == pytest.approx(since, abs=60)


def test_a_run_that_goes_on_is_not_parked(world, new):
    park(world, new)
    world.stores.plan_moves.unpark(run_of(new), "w1")
    assert world.run(run_of(new)).parked is None
    park(world, new)
    carry_on(world, new, plan_of("a", "c"))
    assert world.run(run_of(new)).parked is None


def test_a_run_that_was_replaced_at_a_gate_names_the_run_that_follows(world):
    gate = Gate("singleton 'x'", 1, policy="cancel_oldest")
    for name in ("r0", "r1"):
        world.record(enqueued(run_id=name, gates=(gate,)))
    assert [world.run(name).replaced_by for name in ("r0", "r1")] == ["r1", None]
    world.stores.backlog.stop("r0", "cancelled", "x")
    assert world.run("r0").replaced_by == "r1"


def test_a_run_that_was_replaced_at_a_limit_names_the_run_that_follows(world):
    runs = [world.record(enqueued(run_id=name)) for name in ("r0", "r1")]
    for new in runs:
        request = PermitRequest(new.first.key, world.claim(new), "a", "crm", 1, "cancel_oldest")
        world.stores.limits.request_permit(request)
    assert [world.run(name).replaced_by for name in ("r0", "r1")] == ["r1", None]


def latest(world, new):
    return world.attempts(run_of(new))[-1]


def defer(world, new, waits_for):
    assert world.stores.attempts.defer(ClaimId(new.first.key, world.claim(new)), 0.0, waits_for=waits_for)


def test_an_attempt_waits_since_it_was_first_put_off_for_the_same(world, new):
    assert (latest(world, new).waits_for, latest(world, new).waits_since) == (None, None)
    defer(world, new, "rate openai:x")
    since = latest(world, new).waits_since.timestamp()
    assert since == pytest.approx(world.now(), abs=60)
    world.pass_time(9.0)
    aged = latest(world, new).waits_since
    defer(world, new, "rate openai:x")
    assert (latest(world, new).waits_for, latest(world, new).waits_since) == ("rate openai:x", aged)
    defer(world, new, "breaker openai:x")
    assert latest(world, new).waits_since > aged
    defer(world, new, None)
    assert (latest(world, new).waits_for, latest(world, new).waits_since) == (None, None)


def test_an_attempt_at_a_limit_waits_for_that(world):
    runs = [world.record(enqueued(run_id=name)) for name in ("r0", "r1")]
    for new in runs:
        world.stores.limits.request_permit(PermitRequest(new.first.key, world.claim(new), "a", "crm", 1))
    assert [latest(world, new).waits_for for new in runs] == [None, "limit crm"]
    assert latest(world, runs[1]).waits_since is not None


def crash(world, new, worker="w2"):
    """Its worker is gone; a sweep finds that."""
    world.register_worker(worker)
    world.claim(new, worker)
    world.stores.leases.deregister_worker(worker)
    assert [due.why for due in world.due()] == ["lost"]


BACK = {
    "lost": crash,
    "buried": lambda world, new: world.claim(new) and world.stores.leases.bury("w1", MAX_LOST),
    "handed back": lambda world, new: world.claim(new) and world.stores.leases.hand_back("w1", [new.first.key]),
    "parked": park,
    "starved": lambda world, new: world.stores.attempts.return_starved(
        ClaimId(new.first.key, world.claim(new)), 0.0, Event("attempt.starved"), most=9
    ),
}


@pytest.mark.parametrize("back", BACK)
def test_an_attempt_that_has_run_waits_for_nothing_any_more(world, new, back):
    defer(world, new, "rate openai:x")
    BACK[back](world, new)
    row = latest(world, new)
    assert (row.status in ("ready", "queued"), row.waits_for, row.waits_since) == (True, None, None)


def test_a_message_that_is_handed_back_waits_for_the_same(world, new):
    defer(world, new, "rate openai:x")
    before = latest(world, new).waits_since
    world.stores.backlog.mark_sent({new.first.key: 0.0})
    world.stores.leases.hand_back("w1", [new.first.key])
    assert (latest(world, new).waits_for, latest(world, new).waits_since) == ("rate openai:x", before)


def lost_how(world, new):
    loss = latest(world, new).loss
    assert datetime.fromisoformat(loss["at"]).timestamp() == pytest.approx(world.now(), abs=60)
    return loss["worker"], loss["how"]


def test_an_attempt_that_was_never_lost_has_no_loss(world, new):
    world.claim(new)
    world.stores.leases.hand_back("w1", [new.first.key])
    assert latest(world, new).loss is None


def test_a_loss_names_the_worker_whether_a_sweep_finds_it_or_the_next_claim(world, new):
    crash(world, new)
    assert lost_how(world, new) == ("w2", None)
    world.register_worker("w3")
    world.claim(new, "w3")
    world.stores.leases.deregister_worker("w3")
    world.claim(new, room="apart")
    assert lost_how(world, new) == ("w3", None)
    world.stores.leases.bury("w1", MAX_LOST)
    assert lost_how(world, new) == ("w1", None)


def test_a_process_that_ended_tells_how(world, new):
    world.claim(new, room="apart")
    world.pass_time(0.001)
    world.stores.leases.release_unowned("w1", (), 0.0, how="exit code 9")
    assert [due.why for due in world.due()] == ["lost"]
    assert lost_how(world, new) == ("w1", "exit code 9")
    assert world.claim(new, room="alone")
    world.pass_time(0.001)
    world.stores.leases.release_unowned("w1", (), 0.0)
    assert world.due()
    assert lost_how(world, new) == (None, None)


def test_a_loss_too_many_tells_how_its_process_ended(world, new):
    for _ in range(MAX_LOST + 1):
        world.claim(new, room="apart")
        world.pass_time(0.001)
        world.stores.leases.release_unowned("w1", (), 0.0, how="exit code 9")
        world.due()
    assert [each.how for each in world.poisoned()] == ["exit code 9"]


def test_the_loss_that_is_one_too_many_is_the_latest(world, new):
    for worker in (f"p{number}" for number in range(MAX_LOST + 1)):
        world.register_worker(worker)
        world.claim(new, worker, room="alone")
        world.stores.leases.deregister_worker(worker)
        world.due()
    assert len(world.poisoned()) == 1
    assert lost_how(world, new) == (f"p{MAX_LOST}", None)


def test_the_room_is_that_of_the_latest_claim(world, new):
    rooms = [latest(world, new).room]
    for room in ("alone", "apart", "shared"):
        world.claim(new, room=room)
        rooms.append(latest(world, new).room)
        world.stores.leases.hand_back("w1", [new.first.key])
    assert rooms == [None, "alone", "apart", None]


@pytest.mark.parametrize("alone", [True, False])
def test_the_row_of_a_failure_has_its_input_and_the_answer_that_was_refused(world, new, alone):
    """Alone, or with what else needs its own statement."""
    outcome = replace(failed(), answer="nothing of use")
    decision = decided(new, outcome, fence=world.claim(new))
    world.commit(decision if alone else replace(decision, answers=({"role": "x"},)))
    values = world.values(new.first.key)
    assert (values.input, values.output, values.answer) == (new.first.input, None, "nothing of use")


@pytest.mark.parametrize(
    "close", [CloseAttempt("succeeded"), CloseAttempt("cancelled", "aborted"), CloseAttempt("failed", "paused")]
)
def test_the_row_of_anything_else_has_neither(world, new, close):
    world.commit(replace(decided(new, succeeded(), fence=world.claim(new)), close=close))
    values = world.values(new.first.key)
    assert (values.input, values.answer) == (None, None)


def test_a_large_input_stays_where_it_is_and_as_long_as_the_run(world, new):
    world.register_worker("w1", lease_s=1e9)
    large = packed("x" * 10_000)
    world.stores.blobs.store([large])
    at = replace(new.first, input=large.reference())
    world.conclude(new, failed(), at=at, fence=world.claim(new))
    world.pass_time(2 * DAY_S)
    while world.stores.retention.sweep_blobs(100, every_s=0.5, unused_s=DAY_S):
        pass
    assert world.values(new.first.key).input == large.reference()
    if hasattr(world.stores.blobs, "_recent"):
        world.stores.blobs._recent = Recent()
    assert large.digest in world.stores.blobs.fetch([large.digest])


def test_a_spend_has_the_model_that_it_was_for(world, new):
    """Of a merge, of an outcome that comes too late, and of one under limits."""
    spent = replace(SPENT, model="openai:gpt-5")
    world.conclude(new, succeeded(usage=spent), fence=world.claim(new))
    late = ClaimId(new.first.key, 7)
    world.stores.attempts.spend(run_of(new), late, replace(SPENT, model=None))
    world.stores.attempts.spend(run_of(new), ClaimId(new.first.key, 8), spent)
    asked = {"run": "r1", "limits": {"total_tokens_limit": 10**9}, "tenant": "", "tenant_limits": None}
    limited = world.record(enqueued(run_id="r1", limits=asked))
    world.conclude(limited, succeeded(usage=spent), fence=world.claim(limited))
    assert world.models() == ["openai:gpt-5", None, "openai:gpt-5", "openai:gpt-5"]


def test_the_schema_of_a_question_keeps_the_order_of_its_fields(world, new):
    names = ["reason", "amount", "approved", "a"]
    schema = {"type": "object", "properties": {name: {} for name in names}, "required": names}
    question = {"message": "?", "schema": schema, "expires_s": None}
    asks = NextAttempt("", "b", 1, "flujo.attempts", packed(1), None, 1, kind="resume", question=question)
    world.commit(replace(decided(new, succeeded(), fence=world.claim(new)), next=(asks,)))
    [found] = world.questions(run_of(new))
    assert found.schema == schema
    assert (list(found.schema), list(found.schema["properties"])) == (list(schema), names)
    assert world.stores.records.reply(found.key).question["schema"] == schema
