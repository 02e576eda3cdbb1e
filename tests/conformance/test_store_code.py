"""The code of attempts: recorded with their merge, carried by conversations, and a reason for parking."""

import pytest
from pydantic import BaseModel
from trees import concluded, moved, opening, work
from worlds import run_of

from flujo_client import Pipeline, Step
from flujo_client.contract.code import AwaitedCode, CodeMark, CodeVersion
from flujo_client.contract.outcome import Event
from flujo_client.contract.records import CODE
from flujo_client.pipeline.compile import compile_plan
from flujo_worker.domain.values import NextAttempt
from flujo_worker.ports import ClaimId
from tests.support.builders import decided, enqueued, envelopes, following, pipeline_of, succeeded

OLD, NEW = (
    CodeVersion.of({"tool app:rate": "aaaa"}),
    CodeVersion.of({"tool app:rate": "bbbb", "model of step 'a'": "m"}),
)
HOSTILE = {"tool \x00\ud800": "x", "": ""}


@pytest.fixture
def new(world):
    return world.record(enqueued(pipeline_of("a", "b")))


def test_an_attempt_keeps_its_version(world, new):
    world.conclude(new, succeeded(code=CodeMark(OLD.digest)), fence=world.claim(new))
    assert [each.code for each in world.attempts(run_of(new))] == [OLD.digest, None]


def test_versions_are_read_by_digest_and_stored_once(world):
    world.stores.code.store_code([OLD, NEW])
    world.stores.code.store_code([OLD])
    assert world.stores.code.versions([OLD.digest, NEW.digest, "unknown"]) == {OLD.digest: OLD, NEW.digest: NEW}


def test_names_in_a_version_may_be_any_text(world):
    """A function's name is what its author wrote (M-428)."""
    hostile = CodeVersion.of(HOSTILE)
    world.stores.code.store_code([hostile])
    assert len(world.stores.code.versions([hostile.digest])[hostile.digest].parts) == 2


def test_code_on_record_is_that_of_the_run_and_of_two_plans(world, new):
    """M-428: the steps of the run, then what workers last had for its plan, and for another one."""
    stores = world.stores
    stores.code.store_code([OLD])
    readable = CodeVersion(OLD.parts, {"tool app:rate": "a text"})
    stores.code.store_code_of_steps(new.plan.fingerprint, {"a": readable, "b": readable})
    stores.code.store_code_of_steps(new.plan.fingerprint, {"b": NEW})
    stores.code.store_code_of_steps("other", {"a": NEW})
    assert stores.code.code_on_record(run_of(new), "other").run == ()
    world.conclude(new, succeeded(code=CodeMark(OLD.digest)), fence=world.claim(new))
    found = stores.code.code_on_record(run_of(new), "other")
    assert [(each.address, each.step, each.version) for each in found.run] == [("", "a", OLD)]
    assert (found.old, found.new) == ({"a": OLD, "b": NEW}, {"a": NEW})
    assert found.old["a"].texts == {"tool app:rate": "a text"}


def test_a_text_is_added_to_a_version_that_was_stored_without(world, new):
    """Code from before stored none."""
    world.stores.code.store_code([OLD])
    world.stores.code.store_code_of_steps(
        new.plan.fingerprint, {"a": CodeVersion(OLD.parts, {"tool app:rate": "a text"})}
    )
    assert world.stores.code.code_on_record(run_of(new), "none").old["a"].texts == {"tool app:rate": "a text"}


@pytest.fixture
def talking(world, new):
    """An attempt in a loop whose conversation was held with `OLD`."""
    begun = opening("loop", "", kind="loop", metadata={CODE: [OLD.digest]})
    decision = concluded(
        new.first, moved(new.first), fence=world.claim(new), opens=(begun,), next=(work(begun, code=(OLD.digest,)),)
    )
    world.commit(decision)
    return envelopes(decision)[0]


def test_a_conversation_carries_its_versions_from_attempt_to_attempt(world, talking):
    """What the store sends is what the tail would have sent."""
    world.pass_time(5)
    [due] = world.due()
    assert due.envelope == talking
    assert due.envelope.code == (OLD.digest,)
    [again] = world.stores.backlog.envelopes([talking.key])
    assert again == talking
    moves = moved(talking, metadata={CODE: [OLD.digest, NEW.digest]})
    follows = NextAttempt(
        "loop", "t", 1, "flujo.attempts", talking.input, talking.context, 0, code=(OLD.digest, NEW.digest)
    )
    decision = concluded(talking, moves, fence=world.claim(talking), next=(follows,))
    world.commit(decision)
    world.pass_time(5)
    [due] = world.due()
    assert [due.envelope] == envelopes(decision)


def test_no_one_is_shown_the_versions_among_a_scopes_metadata(world, talking):
    assert [each.metadata for each in world.scopes(run_of(talking))] == [{}, {}]


def test_a_run_may_be_parked_for_bodies_of_the_same_plan(world, new):
    awaited = AwaitedCode("loop/body/a", (OLD.digest,))
    assert world.stores.plan_moves.park(ClaimId(new.first.key, world.claim(new)), "its tool changed", code=awaited)
    assert world.stores.plan_moves.parked(10) == []
    assert world.stores.plan_moves.parked_for_code(10) == [
        (run_of(new), "shapes:pipeline", new.plan.fingerprint, awaited)
    ]
    assert world.stores.plan_moves.unpark(run_of(new), "w")
    assert world.stores.plan_moves.parked_for_code(10) == []
    world.stores.plan_moves.park(ClaimId(new.first.key, world.claim(new)), "no such code here")
    assert [run for run, _, _ in world.stores.plan_moves.parked(10)] == [run_of(new)]


def test_steps_outside_of_loops_carry_nothing(world, new):
    decision = decided(new, succeeded(code=CodeMark(OLD.digest)), fence=world.claim(new))
    world.commit(decision)
    assert following(decision).code == ()
    assert world.scope(run_of(new)).metadata == {}


BOOK, SHORT = {"title": {"type": "str"}, "price": {"type": "int"}}, {"title": {"type": "str"}}


def test_the_fields_that_a_model_had_are_kept(world):
    assert world.stores.code.context_fields("app:Book", "one", BOOK) == []
    assert world.stores.code.context_fields("app:Book", "two", SHORT) == [BOOK]
    assert world.stores.code.context_fields("app:Book", "one", BOOK) == [SHORT]
    assert world.stores.code.context_fields("app:Other", "one", SHORT) == []


def test_the_plans_of_a_run_are_its_own_and_those_that_it_went_by(world, new):
    old = world.record(enqueued(pipeline_of("x")))
    carried = Event("run.carried_on", {"from": old.plan.fingerprint, "to": new.plan.fingerprint})
    world.stores.records.note(run_of(new), [carried])
    assert world.stores.code.plans_of_run(run_of(new)) == [
        (new.plan.fingerprint, "latest"),
        (old.plan.fingerprint, "latest"),
    ]
    assert world.stores.code.plans_of_run("run_none") == []


def test_a_fork_has_the_plans_of_the_run_that_it_was_forked_from(world, new):
    onto = compile_plan(pipeline_of("a", "z"))
    fork = world.fork(world.forked(run_of(new), "a", onto=onto))
    assert [plan for plan, _ in world.stores.code.plans_of_run(fork)] == [onto.fingerprint, new.plan.fingerprint]


def test_a_run_may_be_parked_for_its_context(world, new):
    awaited = AwaitedCode(attempt=new.first.key)
    world.stores.plan_moves.park(ClaimId(new.first.key, world.claim(new)), "its context does not fit", code=awaited)
    assert [each for *_, each in world.stores.plan_moves.parked_for_code(10)] == [awaited]


class Former(BaseModel):
    """What a pipeline had before."""


class Present(BaseModel):
    """What it has now."""


def test_the_models_that_a_pipeline_had_are_those_of_its_plans(world):
    """One that has only the same name is another pipeline."""
    former, present = (
        compile_plan(Pipeline([Step("a", work)], name="orders", context_model=each)) for each in (Former, Present)
    )
    world.stores.code.adopt_plan("app:orders", former, None)
    world.stores.code.adopt_plan("app:orders", present, None)
    assert world.stores.code.former_models(present.fingerprint) == {former.context_model}
    other = compile_plan(Pipeline([Step("b", work)], name="orders", context_model=Present))
    world.stores.code.adopt_plan("other:orders", other, None)
    assert world.stores.code.former_models(other.fingerprint) == frozenset()
