"""Browsers' streams over HTTP, of real workers: one is killed in the middle, readers go away and come back, and a question is answered."""

import json

import httpx
import pytest

from tests.acceptance.stream_pipelines import WORDS
from tests.support.ag_ui import read_sse, shown, verify
from tests.support.live_server import live_server

pytestmark = [pytest.mark.services, pytest.mark.acceptance, pytest.mark.site(workers=2)]
STORY = "".join(WORDS)


@pytest.fixture(scope="module")
def address(site):
    with live_server(site.settings) as address:
        yield address


@pytest.mark.large
def test_a_reader_that_reconnects_all_the_time_gets_each_event_once(site, address):
    """Also where the worker is killed: the text of its attempt is withdrawn, and comes again; not after the reconnect that follows the merge."""
    run = site.client.enqueue("stream_pipelines:story", "kill")
    site.standing(2)
    got, after = [], ""
    while not got or got[-1]["kind"] != "end":
        with httpx.stream(
            "GET", f"{address}/runs/{run.id}/stream", headers={"last-event-id": after}, timeout=60
        ) as stream:
            assert stream.status_code == 200
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    got.append(json.loads(line.removeprefix("data: ")))
                    after = got[-1]["cursor"]
                    if len(got) % 3 == 0 or got[-1]["kind"] == "end":
                        break
    cursors = [tuple(map(int, each["cursor"].split("-"))) for each in got[:-1]]
    assert cursors == sorted(set(cursors))
    kinds = [each["kind"] for each in got]
    assert kinds.count("withdrawn") == 1
    again = got[kinds.index("withdrawn") + 1 :]
    assert STORY.startswith("".join(each.get("text", "") for each in again))
    assert [each["data"]["output"] for each in got if each["kind"] == "step_end"] == [STORY]


def test_ag_ui_tells_a_story_and_its_question_is_answered_there(site, address):
    run = site.client.enqueue("live_pipelines:asked", "hello")
    url, said = (
        f"{address}/runs/{run.id}/ag-ui",
        {"threadId": "t", "runId": "r1", "messages": [], "protocolVersion": "1.0"},
    )
    told = read_sse(httpx.post(url, json=said, timeout=60).text)
    verify(told)
    [interrupt] = told[-1]["outcome"]["interrupts"]
    assert interrupt["message"] == "Keep it?"
    resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": "perhaps"}]
    refused = read_sse(httpx.post(url, json={**said, "resume": resume}, timeout=60).text)
    verify(refused)
    assert refused[-1]["code"] == "ANSWER_REFUSED"
    unknown = [{"interruptId": "elsewhere", "status": "resolved", "payload": True}]
    refused = read_sse(httpx.post(url, json={**said, "resume": unknown}, timeout=60).text)
    what = f"run {run.id} has no question with the id 'elsewhere'; open are: 'keep'"
    assert (refused[-1]["code"], refused[-1]["message"]) == ("UNKNOWN_QUESTION", what)
    answered = read_sse(httpx.post(url, json={**said, "resume": [{**resume[0], "payload": True}]}, timeout=60).text)
    verify(answered)
    assert answered[-1]["outcome"] == {"type": "success"}
    assert [each["text"] for each in shown(answered)] == [STORY]
    assert run.questions()[0].answered_by == "local"


def test_a_run_without_a_stream_says_how_to_get_one(site, address):
    run = site.client.enqueue("stream_pipelines:silent", "hello")
    answer = httpx.get(f"{address}/runs/{run.id}/stream")
    assert (answer.status_code, answer.json()["code"]) == (409, "NO_STREAM")
    assert "stream=True" in answer.json()["suggestion"]


@pytest.mark.large
def test_ag_ui_is_valid_and_ends_with_what_is_merged_though_redis_is_flushed(site, address):
    run = site.client.enqueue("stream_pipelines:lingering", "hello")
    told, gate = [], site.folder / f"go-on-{run.id}"
    with httpx.stream("GET", f"{address}/runs/{run.id}/ag-ui", timeout=60) as stream:
        for line in stream.iter_lines():
            told += read_sse(line)
            if not gate.exists() and "I wait" in [each["text"] for each in shown(told)]:
                site.redis.flushdb()
                gate.touch()
    verify(told)
    assert [each["text"] for each in shown(told)] == ["hello"]
    assert told[-1]["result"] == "hello"
