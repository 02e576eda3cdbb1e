"""Streams of runs: what a real worker writes to Redis while a model answers in pieces, whatever becomes of it."""

import os
import signal
import time

import pytest

from flujo_client.contract.stream import Cursor, keys_of, read_entry
from tests.acceptance.stream_pipelines import SECRET, WORDS
from tests.support.fleet import BRISK, PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.site(worker=BRISK | {"shutdown_grace_s": 0.3}, agents={"cancel_grace_s": 0.5}),
]
STORY = "".join(WORDS)


@pytest.fixture(scope="module")
def services(services_to_break):
    """Return services that no other test process uses: a test here suspends Redis."""
    return services_to_break


def entries(site, run):
    """The entries of a run's stream, as they are in Redis."""
    key, _ = keys_of("", run.id)
    return [read_entry(entry_id, fields) for entry_id, fields in site.redis.xrange(key)]


def told(events):
    """The text that a reader has at the end: what was withdrawn does not count."""
    texts = {}
    for event in events:
        place = event.address, event.step
        texts[place] = "" if event.kind == "withdrawn" else texts.get(place, "") + event.text
    return "".join(texts.values())


def enqueue(site, name, value="", **options):
    return site.client.enqueue(f"stream_pipelines:{name}", value, **options)


def ended(site, run, kind="step_end"):
    """Wait for the run's end, and for the entry of this kind that the worker writes after it."""
    result = run.result(timeout=PATIENCE_S)
    wait_until(lambda: entries(site, run)[-1:] and entries(site, run)[-1].kind == kind, what=site.log)
    return result, entries(site, run)


def assert_gapless(events):
    seqs = [int(event.cursor.partition("-")[2]) for event in events]
    assert seqs == list(range(1, len(seqs) + 1))


def test_a_model_that_answers_in_pieces_is_streamed(site):
    site.standing()
    run = enqueue(site, "story")
    result, events = ended(site, run)
    assert (result.output, told(events)) == (STORY, STORY)
    assert [events[0].kind, events[-1].kind] == ["step_start", "step_end"]
    assert sum(event.kind == "token" for event in events) > 3
    assert_gapless(events)


def test_what_a_step_says_prints_logs_and_has_done_is_streamed(site):
    site.standing()
    run = enqueue(site, "counting")
    _, events = ended(site, run)
    assert told(events) == "part 0 part 1 part 2 part 3 part 4 "
    reports = [event.data for event in events if event.kind == "progress"]
    assert reports[-1] == {"done": 5, "total": 5, "text": "counting"}
    assert len(reports) < 5
    logged = [event.data for event in events if event.kind == "log"]
    assert {"text": "counted 5\n"} in logged
    assert {"logger": "counting", "message": "that is all", "level": "warning"} in logged
    [event] = site.events(run.id, "step.progress")
    assert event["data"] == reports[-1]


def test_only_what_asks_for_it_is_streamed(site):
    site.standing()
    whole, part = enqueue(site, "silent", stream=True), enqueue(site, "some")
    assert told(ended(site, whole)[1])
    assert {event.step for event in ended(site, part)[1]} == {"loud"}
    never = [enqueue(site, "silent"), enqueue(site, "story", stream=False)]
    for run in never:
        run.result(timeout=PATIENCE_S)
        assert entries(site, run) == []


@pytest.mark.usefixtures("own_workers")
@pytest.mark.parametrize("name", ["story", "tools"])
def test_what_a_killed_worker_has_streamed_is_withdrawn_and_comes_again(site, name):
    site.workers(2)
    run = enqueue(site, name, "kill at go")
    wait_until(lambda: told(entries(site, run)).startswith("Once"), what=site.log)
    (site.folder / f"go-on-{run.id}").touch()
    result, events = ended(site, run)
    kinds = [event.kind for event in events]
    assert (result.output, told(events)) == (STORY, STORY)
    assert kinds.count("withdrawn") == 1
    before = events[: kinds.index("withdrawn")]
    assert told(before).startswith("Once")
    assert_gapless(events)
    called = [event.data for event in events if event.data.get("event_kind") == "function_tool_result"]
    assert len(called) == (2 if name == "tools" else 0)  # on record, and shown again


@pytest.mark.usefixtures("own_workers")
def test_what_a_lost_worker_has_streamed_is_withdrawn_although_nobody_takes_over(site):
    site.workers()
    run = enqueue(site, "lingering", queue="lonely")
    alone = site.workers(arguments=("--queues", "lonely"))
    wait_until(lambda: told(entries(site, run)) == "I wait", what=site.log)
    alone.kill()
    wait_until(lambda: entries(site, run)[-1].kind == "withdrawn", what=site.log)
    assert [event.kind for event in entries(site, run)].count("withdrawn") == 1
    (site.folder / f"go-on-{run.id}").touch()
    site.workers(arguments=("--queues", "lonely"))
    assert [event.kind for event in ended(site, run)[1]].count("withdrawn") == 1


def test_an_attempt_that_fails_is_withdrawn_and_the_next_one_streamed(site):
    site.standing()
    _, events = ended(site, enqueue(site, "story", "down"))
    assert told(events) == STORY
    assert [event.attempt for event in events if event.kind in ("step_start", "withdrawn", "step_end")] == [1, 1, 2, 2]


def test_no_secret_is_streamed_in_pieces(site):
    site.standing()
    result, events = ended(site, enqueue(site, "story", "secret"))
    assert SECRET in result.output
    assert told(events) == f"{STORY} My key is sk-***."
    assert all("abcdef" not in str(event.data) for event in events)


def test_a_step_does_not_wait_for_redis(site):
    site.standing()
    run = enqueue(site, "lingering")
    wait_until(lambda: told(entries(site, run)) == "I wait", what=site.log)
    redis = site.redis.info("server")["process_id"]
    os.kill(redis, signal.SIGSTOP)
    began = time.monotonic()
    try:
        (site.folder / f"go-on-{run.id}").touch()
        succeeded = "SELECT 1 FROM flujo_runs WHERE id = %(run)s AND status = 'succeeded'"
        wait_until(lambda: site.rows(succeeded, run=run.id), what=site.log)
        assert time.monotonic() - began < 5  # as long as a command waits for an answer
    finally:
        os.kill(redis, signal.SIGCONT)
    assert ended(site, run)[1][-1].kind == "step_end"


def test_a_question_is_streamed_and_the_answered_step_anew(site):
    site.standing()
    run = enqueue(site, "asking")
    wait_until(run.approvals, what=site.log)
    wait_until(lambda: entries(site, run)[-1].kind == "question", what=site.log)
    assert "look" in entries(site, run)[-1].data["message"]
    run.resume(True)
    result, events = ended(site, run)
    assert (result.output, told(events)) == (STORY, STORY)
    assert [event.kind for event in events].count("withdrawn") == 1


def test_a_question_of_a_human_step_and_its_answer_are_streamed(site):
    site.standing()
    run = site.client.enqueue("human_pipelines:approval", [], stream=True)
    [question] = wait_until(lambda: [each for each in entries(site, run) if each.kind == "question"], what=site.log)
    assert (question.step, question.data) == ("ask", {"message": "May it go out?"})
    run.resume({"approved": True})
    events = list(run.stream())
    own = [event for event in events if event.step == "ask"]
    assert [event.kind for event in own] == ["question", "step_start", "step_end"]
    assert own[-1].data["output"] == {"approved": True, "why": ""}
    assert events[-1].kind == "end"
    *written, last, _ = events
    if last.cursor != written[-1].cursor:  # the run's end may be read before the last step's was written
        written.append(last)
    assert_gapless(written)


def test_a_question_that_expires_is_withdrawn(site):
    site.standing()
    run = site.client.enqueue("human_pipelines:hasty", [], stream=True)
    kinds = [event.kind for event in run.stream()]
    assert [kind for kind in kinds if kind != "step_start"] == [
        "question",
        "withdrawn",
        "end",
    ]  # the run's end may be read before its start


def test_what_a_cancelled_step_has_streamed_is_withdrawn(site):
    site.standing()
    run = enqueue(site, "lingering")
    wait_until(lambda: told(entries(site, run)) == "I wait", what=site.log)
    run.cancel()
    wait_until(lambda: entries(site, run)[-1].kind == "withdrawn", what=site.log)


@pytest.mark.usefixtures("own_workers")
def test_what_a_stopping_worker_has_streamed_is_withdrawn(site):
    """It hands its attempts back; whoever has them next streams them anew."""
    site.dismiss()
    leaving = site.workers()
    run = enqueue(site, "lingering")
    wait_until(lambda: told(entries(site, run)) == "I wait", what=site.log)
    leaving.signal(signal.SIGTERM)
    wait_until(lambda: entries(site, run)[-1].kind == "withdrawn", what=site.log)
    (site.folder / f"go-on-{run.id}").touch()
    site.workers()
    assert [event.kind for event in ended(site, run)[1]].count("withdrawn") == 1


def test_a_child_run_has_a_stream_of_its_own(site):
    site.standing()
    run = enqueue(site, "beside", stream=True)
    run.result(timeout=PATIENCE_S)
    [child] = wait_until(lambda: site.client.list_runs(parent=run.id), what=site.log)
    assert told(ended(site, site.client.get_run(child.id))[1]).startswith("part 0")


def test_a_flushed_stream_begins_anew_and_says_so(site):
    site.standing()
    run = enqueue(site, "lingering")
    wait_until(lambda: told(entries(site, run)) == "I wait", what=site.log)
    before = Cursor.parse(entries(site, run)[-1].cursor)
    site.redis.flushdb()
    (site.folder / f"go-on-{run.id}").touch()
    events = ended(site, run)[1]
    assert [event.kind for event in events] == ["gap", "step_end"]
    assert_gapless(events)
    assert Cursor.parse(events[0].cursor).epoch > before.epoch
