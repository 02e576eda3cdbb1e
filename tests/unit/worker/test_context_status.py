"""M-415: the context in a result says how its run ended."""

from container_parts import echo
from human_parts import ask, paused_run

from flujo_client import ContextState, Pipeline, PipelineContext, Step


class Order(PipelineContext):
    total: int = 0


class Parcel(PipelineContext):
    status: str = "at the depot"


def failing(data):
    raise ValueError("no")


def test_it_is_completed_after_success_and_failed_after_a_failure(engine):
    ended = [engine.run(Pipeline([Step("s", agent)], context_model=Order), "in") for agent in (echo, failing)]
    states = [each.final_pipeline_context.status for each in ended]
    assert ([each.success for each in ended], states) == ([True, False], [ContextState.COMPLETED, ContextState.FAILED])


def test_a_step_sees_a_running_one(engine):
    pipeline = Pipeline([Step("s", lambda data, context: context.status.value)], context_model=Order)
    assert engine.run(pipeline, "in").output == "running"


def test_it_is_paused_while_a_person_is_asked_and_completed_after_the_answer(engine):
    run = paused_run(engine, Pipeline([ask()], context_model=Order))
    paused = engine.result(run).final_pipeline_context
    ended = engine.answer(run, "yes").final_pipeline_context
    assert (paused.status, paused.pause_message) == (ContextState.PAUSED, "go?")
    assert (ended.status, ended.pause_message) == (ContextState.COMPLETED, None)


def test_a_models_own_status_is_left_alone(engine):
    pipeline = Pipeline([Step("s", echo)], context_model=Parcel)
    assert engine.run(pipeline, "in").final_pipeline_context.status == "at the depot"
