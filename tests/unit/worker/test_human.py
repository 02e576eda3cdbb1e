"""Human in the loop in one process (SYS-17): asking, answering, refusing, expiring."""

import pytest
from container_parts import echo
from human_parts import Verdict, ask, event_data, paused_run

from flujo_client import HumanInTheLoopStep, Pipeline, PipelineContext, Step
from flujo_client.config.manager import Settings
from flujo_client.errors import PipelineError, ResumeError
from flujo_worker.testing import LocalEngine
from tests.support.builders import pipeline_of
from tests.support.memory import asked


def sequence(*steps):
    return Pipeline([Step("before", echo), *steps, Step("after", echo)], context_model=PipelineContext)


def test_a_run_pauses_and_continues_with_the_answer(engine):
    """M-449, M-451: the answer is the step's output, and the next step's input."""
    run = paused_run(engine, sequence(ask()))
    assert (engine.result(run).run_status, engine.bus) == ("paused", type(engine.bus)())
    result = engine.answer(run, "yes")
    assert (result.run_status, result.output) == ("succeeded", "yes")
    assert [step.name for step in result.step_history] == ["before", "ask", "after"]


def test_the_status_in_the_context_is_paused_with_the_question(engine):
    """M-449: it is written in the commit that asks, and no longer there after the answer."""
    run = paused_run(engine, sequence(ask()))
    context = engine.result(run).final_pipeline_context
    assert (context.status.value, context.pause_message) == ("paused", "go?")
    assert context.scratchpad == {"status": "paused"}
    context = engine.answer(run, "yes").final_pipeline_context
    assert (context.status.value, context.pause_message, context.scratchpad) == ("completed", None, {})


def test_a_status_of_the_users_own_stays_in_the_scratchpad(engine):
    """C-16: what a step has put there is not overwritten, neither by the pause nor by its end."""
    run = engine.enqueue(sequence(ask()), None, context={"scratchpad": {"status": "drafted"}})
    engine.drain()
    assert engine.result(run).final_pipeline_context.scratchpad == {"status": "drafted"}
    assert engine.answer(run, "yes").final_pipeline_context.scratchpad == {"status": "drafted"}


def test_without_a_message_the_step_is_named(engine):
    """M-450."""
    run = paused_run(engine, sequence(ask(message=None)))
    assert engine.approvals(run)[0].message == "Step 'ask' requires human input."


def test_a_message_is_made_of_input_and_context_when_the_run_comes_there(engine):
    """M-450: rendered at pause time and stored."""
    run = paused_run(
        engine, sequence(ask(message=lambda data, context: f"{data} of {context.initial_prompt}?")), "apple"
    )
    assert engine.approvals(run)[0].message == "apple of apple?"


@pytest.mark.parametrize("said", ["", "  \n", None, 3])
def test_an_empty_message_is_an_error_before_pausing(engine, said):
    """U-26."""
    run = paused_run(engine, sequence(ask(message=lambda *_: said)))
    result = engine.result(run)
    assert (result.run_status, result.error.code) == ("failed", "EMPTY_MESSAGE")
    assert engine.approvals(run) == []


def test_a_message_that_no_one_could_read_is_an_error_before_pausing(engine):
    """What a row would hold of it could not be read back as a question."""
    run = paused_run(engine, sequence(ask(message=lambda *_: "x" * 100_001)))
    result = engine.result(run)
    assert (result.run_status, result.error.code) == ("failed", "MESSAGE_TOO_LONG")
    assert "has 100,001 characters; at most 100,000" in result.error.message
    assert engine.approvals(run) == []


def test_a_typed_answer_arrives_as_its_type_and_is_sunk(engine):
    """U-36: kept whole; requirements §2.11, `sink_to` and history."""
    run = paused_run(engine, sequence(ask(input_schema=Verdict, sink_to="scratchpad.verdict")))
    result = engine.answer(run, {"approved": True, "why": "x" * 5000}, actor="ana", note="read it")
    context = result.final_pipeline_context
    assert result.output == context.scratchpad["verdict"] == Verdict(approved=True, why="x" * 5000)
    [done] = context.hitl_history
    assert (done.question, done.answer, done.actor, done.note) == ("go?", result.output, "ana", "read it")
    assert [turn.role for turn in context.conversation_history] == ["assistant", "user"]


def test_an_answer_that_does_not_fit_is_refused_before_it_is_sent(engine):
    run = paused_run(engine, sequence(ask(input_schema=Verdict)))
    with pytest.raises(ResumeError, match="approved") as refused:
        engine.answer(run, {"approved": "s3cret"})
    assert refused.value.error_code == "ANSWER_REFUSED"
    assert "s3cret" not in str(refused.value)
    assert engine.answer(run, {"approved": True}).run_status == "succeeded"


def test_a_json_schema_is_a_schema_too(engine):
    run = paused_run(engine, sequence(ask(input_schema={"enum": ["yes", "no"]})))
    with pytest.raises(ResumeError, match="enum"):
        engine.answer(run, "maybe")
    assert engine.answer(run, "no").output == "no"


class Even(Verdict):
    """No schema tells this rule."""

    def __init__(self, **data):
        super().__init__(**data)
        if not self.why:
            raise ValueError("say why")


def test_an_answer_that_only_the_worker_can_refuse_is_asked_for_again(engine):
    """A run that has waited for a month is not lost for a slip of the hand."""
    run = paused_run(engine, sequence(ask(input_schema=Even)))
    assert engine.answer(run, {"approved": True}).run_status == "paused"
    [again] = engine.approvals(run)
    assert "say why" in (again.refused or "")
    assert again.key.endswith(":resume2")
    assert engine.answer(run, {"approved": True, "why": "so"}).run_status == "succeeded"


def test_an_answer_of_a_class_that_is_not_to_be_had_is_asked_for_again():
    """Workers import under allowed prefixes only (M-014); someone can answer in plain data."""
    settings = Settings(allowed_imports=["flujo_client"], mode="development")
    with LocalEngine(settings) as engine:
        run = paused_run(engine, Pipeline([ask()]))
        assert engine.answer(run, Verdict(approved=True)).run_status == "paused"
        assert "human_parts" in (engine.approvals(run)[0].refused or "")
        assert engine.answer(run, {"approved": True}).output == {"approved": True}


def refusal(engine, run, value="yes", **named):
    with pytest.raises(ResumeError) as refused:
        engine.answer(run, value, **named)
    return refused.value


def test_the_second_answer_is_told_who_was_first_and_when(engine):
    """M-452: idempotent and exclusive."""
    run = paused_run(engine, sequence(ask()))
    engine.answer(run, "yes", actor="ana")
    refused = refusal(engine, run, "no")
    assert refused.error_code == "ALREADY_ANSWERED"
    assert "by ana at 2023-11-14" in str(refused)
    assert event_data(engine, run, "run.answered") == [{"step": "ask", "actor": "ana", "note": None}]


def test_a_run_that_asks_nothing_cannot_be_answered(engine):
    run = engine.enqueue(pipeline_of())
    assert refusal(engine, run).error_code == "NOT_PAUSED"
    engine.drain()
    assert refusal(engine, run).error_code == "RUN_ENDED"


def test_a_question_of_another_name_is_unknown(engine):
    run = paused_run(engine, sequence(ask()))
    refused = refusal(engine, run, step="nobody")
    assert (refused.error_code, "'ask'" in str(refused)) == ("UNKNOWN_QUESTION", True)


def test_a_cancelled_run_cannot_be_answered_and_keeps_no_question(engine):
    run = paused_run(engine, sequence(ask()))
    asked(engine.stores).request_cancel(run)
    assert refusal(engine, run).error_code == "RUN_ENDED"
    engine.drain()
    assert engine.approvals(run) == []
    assert [row.status for row in engine.history(run) if row.kind == "resume"] == ["cancelled"]
    assert engine.result(run).run_status == "cancelled"


def test_a_deadline_closes_the_question(engine):
    run = engine.enqueue(sequence(ask()), "in", deadline=engine.now + 60)
    engine.drain()
    engine.pass_time(61)
    assert refusal(engine, run).error_code == "RUN_ENDED"
    assert engine.result(run).run_status == "expired"


def test_a_question_stays_open_permanently_without_an_expiry(engine):
    run = paused_run(engine, sequence(ask()))
    engine.pass_time(30 * 86_400)
    assert engine.answer(run, "yes").run_status == "succeeded"


def test_a_question_that_expires_fails_its_step(engine):
    """A fault of its own category, which is not tried again."""
    run = paused_run(engine, sequence(ask(expires_s=60)))
    engine.pass_time(59)
    assert engine.result(run).run_status == "paused"
    engine.pass_time(1)
    error = engine.result(run).error
    assert (error.category, error.code, error.details) == ("human", "QUESTION_EXPIRED", {"waited_s": 60})
    assert len([row for row in engine.history(run) if row.kind == "resume"]) == 1


def test_a_question_that_expires_may_have_a_default(engine):
    run = paused_run(
        engine, sequence(ask(expires_s=60, on_expiry="default", default={"approved": False}, input_schema=Verdict))
    )
    engine.pass_time(60)
    result = engine.result(run)
    assert (result.run_status, result.output) == ("succeeded", Verdict(approved=False))
    assert result.final_pipeline_context.hitl_history[0].actor is None


def test_a_question_that_expires_may_be_escalated_once(engine):
    run = paused_run(engine, sequence(ask(expires_s=60, on_expiry="escalate", escalate_to="boss")))
    engine.pass_time(60)
    [again] = engine.approvals(run)
    assert (again.actor, engine.result(run).run_status) == ("boss", "paused")
    engine.pass_time(60)
    assert engine.result(run).error.code == "QUESTION_EXPIRED"


def test_an_answer_after_the_expiry_is_refused_as_expired(engine):
    """Whether or not a sweep has seen it by then."""
    run = paused_run(engine, sequence(ask(expires_s=60)))
    engine.now += 61
    assert refusal(engine, run).error_code == "QUESTION_EXPIRED"
    engine.pass_time(0)
    assert refusal(engine, run).error_code == "QUESTION_EXPIRED"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"message": " "}, "message_for_user is empty"),
        ({"message": "x" * 100_001}, "message_for_user has 100,001 characters; at most 100,000 are allowed"),
        ({"message": 3}, "is not callable"),
        ({"on_expiry": "panic"}, "must be one of fail, default, escalate"),
        ({"on_expiry": "default"}, "needs expires_s"),
        ({"expires_s": 0}, "above 0"),
        ({"escalate_to": "boss"}, "escalate_to must be a text"),
        ({"input_schema": {"type": "nonsense"}}, "not a JSON Schema"),
        ({"input_schema": 3}, "must be a type or a JSON Schema"),
        ({"input_schema": Verdict, "expires_s": 1, "on_expiry": "default", "default": 3}, "does not fit"),
        ({"default": object()}, "default"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(engine, options, said):
    with pytest.raises(PipelineError, match=said):
        engine.enqueue(sequence(ask(**options)), "in")


def test_its_other_name_and_the_factory_make_the_same():
    """C-17, requirements §2.3."""
    step = HumanInTheLoopStep("ask", message="go?")
    made = Step.human_in_the_loop("ask", "go?")
    assert step.message == step.message_for_user == made.message_for_user == "go?"
    assert type(made) is HumanInTheLoopStep
