"""A run's rows as a tree: everything that happened, once, and where it happened (M-291, M-292, M-293)."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import EXAMPLES, NOW, C, Recorder, S, pipelines, run

from flujo_client.contract.records import AttemptRecord, EventRecord
from flujo_client.contract.trace import CHILDREN, build_trace, spent
from flujo_client.serial import Packed
from tests.support.builders import packed


def trace(recorder, **rest):
    known = {"status": "succeeded", "ended_at": recorder.now} | rest
    return build_trace(run(**known), recorder.attempts, recorder.scopes, recorder.events)


def traced(*nodes):
    return trace(Recorder().play(*nodes))


def walk(node):
    yield node
    for child in node.children:
        yield from walk(child)


def drawn(node):
    """Kinds and names, as a tree."""
    said = f"{node.kind} {node.name}"
    return (said, [drawn(each) for each in node.children]) if node.children else said


@pytest.mark.parametrize(("kind", "child"), CHILDREN.items())
def test_every_level_is_there(kind, child):
    """Run → container → iteration, branch, path … → step → attempt (M-292)."""
    agent = ["attempt attempt 1"] if kind == "router" else []
    step = ("step x", ["attempt attempt 1", "attempt attempt 2"])
    box = (f"{kind} box", [*agent, (f"{child} one", [step])])
    assert drawn(traced(C("box", kind, [[S("x", tries=2)]], names=("one",)))) == ("run orders", [box])


def test_the_root_says_what_was_asked_for_without_its_secrets():
    """Requirements §2.9: version and input; `[log] redact` counts."""
    value = {"topic": "bees", "db_password": "hunter2", "iban": "DE02", "more": "x" * 300}
    root = build_trace(run(input=packed(value)), (), (), (), hidden=["IBAN"])
    facts = root.attributes
    assert facts["flujo.pipeline.version"] == "1"
    assert facts["flujo.input"].startswith('{"topic":"bees","db_password":***,"iban":"***","more":"xxx')
    assert len(facts["flujo.input"]) == 200
    assert "flujo.is_background" not in facts


def test_an_input_whose_key_is_missing_hides_nothing_else():
    root = build_trace(run(input=Packed.from_bytes(b"e\x02k1sealed")), (), (), ())
    why = "(cannot be read: encrypted with the key 'k1', which `value_keys` lacks here)"
    assert (root.attributes["flujo.input"], root.attributes["flujo.pipeline.version"]) == (why, "1")


def test_a_run_in_the_background_says_so():
    """Requirements §2.9."""
    assert build_trace(run(is_background=True), (), (), ()).attributes["flujo.is_background"] is True


def test_starts_and_joins_are_told_with_their_container():
    """They are rows of the run and no steps (M-292)."""
    box = traced(C("box", "parallel", [[S("x")], [S("y")]])).children[0]
    assert [(work["kind"], work["status"]) for work in box.attributes["work"]] == [
        ("start", "succeeded"),
        ("join", "succeeded"),
    ]
    assert [event.offset_s for event in box.events] == [1.0, 4.0]
    assert not any(each.kind in ("start", "join") for each in walk(box))


def test_a_container_that_is_about_to_begin_is_there():
    """Its start row is queued, its scope not yet open (M-292)."""
    recorder = Recorder()
    recorder.attempt("", "box", kind="start", status="queued")
    [box] = trace(recorder, status="queued", ended_at=None).children
    assert (box.name, box.kind, box.status, len(box.attributes["work"])) == ("box", "start", "queued", 1)


def test_a_place_says_what_all_in_it_spent():
    """Whatever came of it: the trace is the whole story (M-291, C-11)."""
    box = traced(C("box", "parallel", [[S("x")], [S("y", ok=False)]], ignores=True)).children[0]
    assert (box.attributes["tokens"], box.attributes["cost_usd"]) == (20, 0.5)
    assert (box.children[1].status, box.children[1].attributes["tokens"]) == ("failed", 10)


def test_a_container_says_how_it_went():
    """Its feedback is drawn, the rest of its metadata is there for programs (M-291)."""
    told = {"exit_reason": "condition", "feedback": "condition met after 2"}
    box = traced(C("box", "loop", [[S("x")]] * 2, metadata=told)).children[0]
    facts = box.attributes
    assert (facts["attempts"], facts["feedback"]) == (2, "condition met after 2")
    assert facts["metadata"] == {"exit_reason": "condition"}


def test_a_failed_container_has_its_faults_words():
    """M-025."""
    box = traced(C("box", "loop", [[S("x", ok=False)]])).children[0]
    assert (box.status, box.attributes["feedback"]) == ("failed", "in box: in box#1: x broke")


@pytest.mark.parametrize(("status", "ended", "said"), [("running", False, "running"), ("expired", True, "expired")])
def test_an_open_container_is_as_its_run(status, ended, said):
    """It runs with it and ends with it (M-290)."""
    recorder = Recorder().play(C("box", "loop", [[S("x")]]))
    recorder.scopes = [replace(row, status="open", closed_at=None) for row in recorder.scopes]
    box = trace(recorder, status=status, ended_at=recorder.now if ended else None).children[0]
    assert [(each.status, each.duration_s) for each in (box, box.children[0])] == [(said, None)] * 2


def test_nothing_lasts_less_than_no_time():
    """Clocks differ; a duration below zero would be a lie (M-293)."""
    recorder = Recorder().play(C("box", "loop", [[S("x")]]))
    recorder.scopes = [replace(row, closed_at=row.opened_at - timedelta(seconds=1)) for row in recorder.scopes]
    assert all(each.duration_s >= 0 and each.offset_s >= 0 for each in walk(trace(recorder)))


@pytest.mark.parametrize(
    ("row", "told", "wait"),
    [
        ({}, {}, ("worker", 0.0, 5.0)),
        ({"number": 2}, {}, ("retry", 0.0, 5.0)),
        ({"status": "queued", "started_at": None}, {}, ("worker", 0.0, None)),
        ({"status": "cancelled", "started_at": None}, {}, ("worker", 0.0, 9.0)),
        ({"fence": 2}, {}, None),
        ({"fence": 2}, {"flujo.breaker.waiting": 2}, ("breaker", 2.0, 3.0)),
        ({"status": "ready", "started_at": None}, {"flujo.breaker.waiting": 2}, ("breaker", 2.0, None)),
        ({"fence": 3}, {"flujo.breaker.waiting": 2, "flujo.limit.waiting": 3}, ("limit", 3.0, 2.0)),
        ({"kind": "resume", "status": "paused", "started_at": None}, {}, ("answer", 0.0, None)),
        ({"kind": "resume"}, {}, ("answer", 0.0, 5.0)),
        ({"kind": "resume", "fence": 3}, {"run.answered": 4}, ("answer", 0.0, 4.0)),
        ({"kind": "resume", "status": "ready", "started_at": None}, {"run.unanswered": 4}, ("answer", 0.0, 4.0)),
    ],
)
def test_an_attempt_says_what_it_waited_for(row, told, wait):
    """From when it was made, or told to wait, until it was at work; what a lost worker took is no one's wait (M-293)."""
    at = [NOW + timedelta(seconds=each) for each in range(10)]
    ended = {} if row.get("status") in ("queued", "ready", "paused") else {"ended_at": at[9]}
    known = {"number": 1, "kind": "step", "status": "succeeded", "started_at": at[5], "fence": 1, **ended}
    attempt = AttemptRecord("k", "", "x", created_at=at[0], **{**known, **row})
    events = [EventRecord(1, at[second], "run_1", name, "info", "k", {}) for name, second in told.items()]
    [step] = build_trace(run(), [attempt], [], events).children
    told_of = step.children[0].attributes.get("wait")
    assert told_of == (wait and dict(zip(("for", "offset_s", "duration_s"), wait, strict=True)))


def test_an_event_that_names_no_attempt_is_the_runs():
    """Nothing of the events is lost (M-292)."""
    recorder = Recorder().play(S("a"))
    recorder.events = [EventRecord(1, recorder.now, "run_1", "said", "info", key, {}) for key in (None, "gone")]
    assert [event.name for event in trace(recorder).events] == ["said", "said"]


def keys(root):
    """The key of every attempt that a tree shows, once for each time."""
    return Counter(
        key
        for each in walk(root)
        for key in [each.attributes.get("key"), *(work["key"] for work in each.attributes.get("work", ()))]
        if key is not None
    )


@given(pipelines, st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_there_are_no_orphans(nodes, data):
    """Every attempt and every event stands at exactly one place, however far a run has come (M-292)."""
    recorder = Recorder().play(*nodes)
    recorder.attempts = recorder.attempts[: data.draw(st.integers(0, len(recorder.attempts)))]
    reached = {row.address for row in recorder.attempts}
    recorder.scopes = [
        row
        for row in recorder.scopes
        if row.kind == "sequence" or row.address in reached or data.draw(st.booleans()) or below(row, reached)
    ]
    root = trace(recorder, tokens=0)
    assert keys(root) == Counter(row.key for row in recorder.attempts)
    assert sum(len(each.events) for each in walk(root)) == len(recorder.events)
    assert spent(root, "tokens") == sum(row.tokens for row in recorder.attempts)


def below(row, addresses):
    return any(each.startswith((f"{row.address}/", f"{row.address}#")) for each in addresses)


@given(pipelines)
@settings(max_examples=EXAMPLES, deadline=None)
def test_no_child_begins_before_its_parent(nodes):
    """M-293."""
    for node in walk(traced(*nodes)):
        assert all(child.offset_s >= node.offset_s for child in node.children)


@pytest.mark.large
def test_long_loops_are_told_in_linear_time():
    """M-291: thousands of iterations can be looked at; in processor time, for the machine may be busy."""

    def took_ms(count):
        recorder = Recorder().play(C("box", "loop", [[S("x")]] * count))
        began = process_time()
        trace(recorder)
        return (process_time() - began) * 1000

    quarter, whole = took_ms(1_000), took_ms(4_000)
    print(f"\n4000 iterations: {whole:.0f} ms, a quarter of them: {quarter:.0f} ms")
    assert whole < 12 * quarter
