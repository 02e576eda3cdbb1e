"""What verbs ask of the world, driven by hand: no service, no clock (M-010, M-291)."""

from contextlib import suppress

from recorded import C, Recorder, S, run

from flujo_client import Pipeline, Settings, Step
from flujo_client.api import bulk, operations
from flujo_client.contract.records import EventRecord
from flujo_client.gateway.effects import MarkSent, Publish, Query, Together
from flujo_client.gateway.plan_requests import StoredPlan
from flujo_client.pipeline.compile import compile_plan
from tests.support.builders import echo, pipeline_of

SETTINGS = Settings()

plain = pipeline_of("a")
looping = Pipeline(
    [Step.loop_until("again", Pipeline([Step("a", echo)]), exit_condition_callable=lambda output, context: True)]
)


def perform(verb, **answers):
    """Perform a verb; answers are by the request's name, functions of its parameters. Gives its end and what it asked."""
    asked, answer = [], None
    try:
        while True:
            effect = verb.send(answer)
            asked.append(effect)
            if isinstance(effect, Together):
                [answer], asked_together = perform(effect.act([effect.item]), **answers)
                asked += asked_together
                continue
            name = effect.request.name if isinstance(effect, Query) else ""
            answer = answers[name](effect.request.parameters) if name in answers else isinstance(effect, Publish)
    except StopIteration as end:
        return end.value, asked


def recorded(pipeline, queue):
    settings = SETTINGS.model_copy(
        update={"worker": SETTINGS.worker.model_copy(update={"control_queue": queue}), "allowed_imports": ["*"]}
    )
    _, asked = perform(operations.enqueue(settings, pipeline, "in", {}), record=lambda asked: asked["run"])
    [row] = [each.request.parameters for each in asked if isinstance(each, Query) and each.request.name == "record"]
    [sent] = [each.envelopes for each in asked if isinstance(each, Publish)]
    assert [(row["kind"], row["queue"])] == [(each.kind, each.queue) for each in sent]
    return row["kind"], row["queue"]


def test_a_run_that_begins_with_a_container_begins_on_the_configured_control_queue():
    """Its start row moves a container and is no try at a step (M-010)."""
    assert recorded(looping, "mine.control") == ("start", "mine.control")


def test_a_run_that_begins_with_a_step_does_not():
    """M-010."""
    assert recorded(plain, "mine.control") == ("step", "flujo.attempts")


def test_enqueue_waits_for_one_statement():
    """What was published is marked later, with others: it is no one's commit that the caller waits for (M-010)."""
    settings = SETTINGS.model_copy(update={"allowed_imports": ["*"]})
    _, asked = perform(operations.enqueue(settings, plain, "in", {}), record=lambda asked: asked["run"])
    assert [each.request.name for each in asked if isinstance(each, Query)] == ["record"]
    [sent] = [each.envelopes for each in asked if isinstance(each, Publish)]
    assert [each.keys for each in asked if isinstance(each, MarkSent)] == [[each.key for each in sent]]


def test_an_event_loop_gets_its_turn_while_many_values_are_checked():
    """M-010: not one of a thousand runs after another in one go."""
    settings = SETTINGS.model_copy(update={"allowed_imports": ["*"]})
    taken = []
    verb = bulk.enqueue_many(settings, plain, (taken.append(each) or each for each in range(500)), {})
    in_one_go, answer = [], None
    with suppress(StopIteration):
        while True:
            before = len(taken)
            effect = verb.send(answer)
            in_one_go.append(len(taken) - before)
            answer = effect.request.read([]) if isinstance(effect, Query) else True
    assert sum(in_one_go) == 500
    assert max(in_one_go) <= 50


def rows_of(recorder, events=()):
    """A run's rows, by the requests that read them."""
    return {
        "run": lambda _: run(ended_at=recorder.now),
        "attempts": lambda _: recorder.attempts,
        "scopes": lambda _: recorder.scopes,
        "plans": lambda _: StoredPlan("shop:pipeline", compile_plan(plain)),
        "events": lambda asked: [each for each in events if each.id > asked["id"]][: asked["limit"]],
    }


def test_scopes_are_read_after_the_attempts():
    """Rows are only added: read in this order, every attempt's scope is there (M-292)."""
    recorder = Recorder().play(C("box", "loop", [[S("x")]]))
    got, asked = perform(operations.peek_at(SETTINGS, "run_1"), **rows_of(recorder))
    assert [each.request.name for each in asked] == ["run", "attempts", "scopes"]
    assert [each.name for each in got.step_history[0].step_history] == ["box#1"]


def test_a_trace_has_the_whole_story(monkeypatch):
    """However many events there are, none is left out (M-292)."""
    monkeypatch.setattr(operations, "EVENTS_AT_ONCE", 3)
    recorder = Recorder().play(S("a"))
    events = [EventRecord(n, recorder.now, "run_1", f"e{n}", "info", None, {}, f"0-{n}") for n in range(1, 8)]
    got, asked = perform(operations.trace_of(Settings(), "run_1"), **rows_of(recorder, events))
    assert [each.name for each in got.events] == [f"e{n}" for n in range(1, 8)]
    assert sum(each.request.name == "events" for each in asked) == 3
