"""AG-UI and Vercel's chunks: every stream is valid on its own and shows the same, whenever a browser joins."""

import asyncio
from datetime import UTC, datetime

import pytest
from pydantic_ai.messages import PartStartEvent, TextPart
from starlette.testclient import TestClient
from streamed import RUN, FakeClient, FakeRun, at_a_step, call, numbered, text, thought

from flujo_client.contract.approval import Approval
from flujo_client.contract.stream import StreamEvent
from flujo_client.errors import KeyMissing
from flujo_client.live import ag_ui, host
from flujo_client.live.access import User
from flujo_client.live.ag_ui import AgUiState
from flujo_client.live.app import live_app
from tests.support.ag_ui import read_sse, shown, verify

MONA, READER = User("mona", may_act=True), User("rita")
END = StreamEvent("end", {"status": "succeeded", "output": "Twelve."})
ANSWERED = [
    *at_a_step(
        "chat",
        1,
        ("step_start", {}),
        *thought("Let me", " count."),
        *text("I ", "look."),
        *call("count", "call_1", '{"of":', ' "eggs"}'),
        *text("Twel", "ve."),
        ("step_end", {"status": "succeeded", "output": "Twelve."}),
    ),
    END,
]
RETRIED = [
    *at_a_step("chat", 1, ("step_start", {}), *thought("Hm"), *text("Elev", "en?")[:-1]),
    *at_a_step("chat", 1, ("withdrawn", {})),
    *at_a_step(
        "chat", 2, ("step_start", {}), *text("Twel", "ve"), ("step_end", {"status": "succeeded", "output": "Twelve."})
    ),
    END,
]
LEFT = at_a_step(
    "left", 1, ("step_start", {}), *text("l1", "l2", "l3"), ("step_end", {"status": "succeeded", "output": "l1l2l3"})
)
RIGHT = at_a_step(
    "right", 1, ("step_start", {}), *text("r1", "r2", "r3"), ("step_end", {"status": "succeeded", "output": "r1r2r3"})
)
BESIDE = [*(each for pair in zip(LEFT, RIGHT, strict=True) for each in pair), END]
ROWS = {"steps": [{"address": "", "step": "chat", "attempt": 1, "status": "succeeded", "output": "Twelve."}]}
LOST = [
    *at_a_step("chat", 1, ("step_start", {}), *text("Twel", "v", "e.")[:2]),
    StreamEvent("gap", {}),
    StreamEvent("snapshot", ROWS),
    *at_a_step("next", 1, ("step_start", {}), *text("and", " so on")[1:], ("log", {"text": "hello"})),
    END,
]
GOES_ON = [("token", PartStartEvent(index=1, part=TextPart("c"), previous_part_kind="text")), *text("b", "d")[1:]]
RUNNING = {"steps": [{"address": "", "step": "chat", "attempt": 1, "status": "running"}]}
LOST_BEFORE = [
    *at_a_step("chat", 1, *text("a", "b")[:1]),
    StreamEvent("gap", {}),
    StreamEvent("snapshot", RUNNING),
    *at_a_step("chat", 1, *GOES_ON),
    END,
]
RUNS = {"answered": ANSWERED, "retried": RETRIED, "beside": BESIDE, "lost": LOST, "lost before": LOST_BEFORE}


def said_by(events, **run):
    return FakeRun(numbered(events), **run)


def browser(run, auth=lambda request, run_id: MONA):
    return TestClient(live_app(FakeClient(run), auth=auth))


def joined(run, after=None, path="ag-ui"):
    answer = browser(run).get(f"/runs/{RUN}/{path}", headers={"last-event-id": after} if after else {})
    assert answer.status_code == 200, answer.text
    return read_sse(answer.text)


def texts(messages):
    """What people see, without the ids, which differ for results of tools and thoughts."""
    return sorted(
        (each["role"], each["text"], str(each["calls"])) for each in messages if each["text"] or each["calls"]
    )


def told(events):
    """What a browser has that was there from the beginning."""
    state = AgUiState(RUN)

    async def tell():
        return [each for event in events for each in await state.apply(event)]

    return shown([each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in asyncio.run(tell())])


@pytest.mark.parametrize("name", RUNS)
def test_whenever_a_browser_joins_ag_ui_its_stream_is_valid_and_it_shows_the_same(name):
    events = numbered(RUNS[name])
    final = texts(told(events))
    for n in range(len(events) + 1):
        again = joined(FakeRun(events), after=events[n - 1].cursor if n else None)
        verify(again)
        assert texts(shown(again, before=told(events[:n]))) == final, n


def test_a_part_that_goes_on_with_one_from_before_a_gap_is_shown():
    assert texts(told(numbered(LOST_BEFORE))) == [("assistant", "acd", "{}")]


def test_what_is_open_is_opened_again_with_its_text_so_far():
    run = FakeRun(numbered(ANSWERED))
    events = joined(run, after=numbered(ANSWERED)[4].cursor)  # behind "I "
    assert [each["type"] for each in events[:5]] == [
        "RUN_STARTED", "MESSAGES_SNAPSHOT", "STEP_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT",
    ]  # fmt: skip
    [_, opened] = events[1]["messages"]
    assert (opened["content"], opened["id"], events[4]["delta"]) == ("I ", events[3]["messageId"], "look.")


def test_thoughts_that_a_browser_has_are_not_doubled_when_they_come_again():
    """It joins without a cursor, and the past comes too late for the snapshot."""
    events = numbered(ANSWERED)
    state = told(events)
    messages = [
        {"id": each["id"], "role": "reasoning", "content": each["text"]}
        for each in state
        if each["role"] == "reasoning"
    ]
    mine = {"id": "user_1", "role": "user", "content": "How many?"}
    said = {"threadId": "t", "runId": "r", "messages": [mine, *messages]}
    answer = browser(FakeRun(events, pause_s=0.06)).post(f"/runs/{RUN}/ag-ui", json=said)
    again = read_sse(answer.text)
    verify(again)
    assert (again[0]["threadId"], again[0]["runId"]) == ("t", "r")
    assert texts(shown(again, before=state)) == sorted([*texts(state), ("user", "How many?", "{}")])


def test_an_output_replaces_the_text_that_was_streamed():
    ended = at_a_step("chat", 1, ("step_end", {"status": "succeeded", "output": "12"}))
    events = numbered([*at_a_step("chat", 1, ("step_start", {}), *text("Twel", "ve")), *ended, END])
    assert texts(told(events)) == [("assistant", "12", "{}")]


def test_a_question_is_an_interrupt():
    question = Approval(RUN, "shop", "", "ask", "key_1", "Refund?", {"type": "boolean"}, datetime.now(UTC), "paused")
    run = said_by(at_a_step("ask", 1, ("question", {})), is_open=True, status="paused", approvals=[question])
    events = joined(run)
    verify(events)
    [interrupt] = events[-1]["outcome"]["interrupts"]
    assert (interrupt["id"], interrupt["message"], interrupt["responseSchema"]) == (
        "key_1",
        "Refund?",
        {"type": "boolean"},
    )
    assert run.ended_readers == 1


@pytest.mark.parametrize(
    ("status", "sent", "last"),
    [
        ("succeeded", {}, {"type": "RUN_FINISHED", "outcome": {"type": "success"}, "result": "Twelve."}),
        ("failed", {}, {"type": "RUN_ERROR", "code": "failed", "message": "no model"}),
        ("cancelled", {}, {"type": "RUN_ERROR", "code": "cancelled", "message": "no model"}),
        ("cancelled", {"protocolVersion": "1.0"}, {"type": "RUN_FINISHED", "outcome": {"type": "cancelled"}}),
    ],
)
def test_an_end_is_told_as_the_protocol_has_it(status, sent, last):
    data = {"status": status, "output": "Twelve."} if status == "succeeded" else {"status": status, "error": "no model"}
    run = said_by([StreamEvent("end", data)])
    answer = browser(run).post(f"/runs/{RUN}/ag-ui", json={"threadId": "t", "runId": "r", "messages": [], **sent})
    events = read_sse(answer.text)
    verify(events)
    assert last.items() <= events[-1].items()


OPEN = [*at_a_step("chat", 1, ("step_start", {}), *text("Twel", "ve")[:-1])]


@pytest.mark.parametrize(("pause_s", "closed"), [(0.0, []), (0.4, ["TEXT_MESSAGE_END", "STEP_FINISHED"])])
def test_what_breaks_off_is_closed_where_it_was_open_and_says_why(monkeypatch, pause_s, closed):
    monkeypatch.setattr(ag_ui, "PAST_S", (60.0, 60.0))
    events = joined(said_by(OPEN, pause_s=pause_s, breaks=KeyMissing("no key `k2` here")))
    verify(events)
    assert (events[-1]["type"], events[-1]["message"]) == ("RUN_ERROR", "no key `k2` here")
    assert [each["type"] for each in events if each["type"].endswith(("_END", "_FINISHED"))] == closed


def test_a_server_that_stops_says_so(monkeypatch):
    monkeypatch.setattr(host, "is_stopping", lambda: True)
    events = joined(said_by(OPEN, is_open=True))
    verify(events)
    assert events[-1]["code"] == "server_stops"


@pytest.mark.parametrize(
    ("user", "content", "kind", "status"),
    [
        (MONA, b"{}", "application/json", 400),
        (MONA, b"threadId=t", "application/x-www-form-urlencoded", 415),
        (MONA, b"[" * 3_000_000, "application/json", 413),
        (
            READER,
            b'{"threadId":"t","runId":"r","messages":[],"resume":[{"interruptId":"k","status":"cancelled"}]}',
            "application/json",
            403,
        ),
    ],
)
def test_what_is_no_input_is_refused_and_so_are_answers_of_readers(user, content, kind, status):
    run = said_by([END])
    client = browser(run, auth=lambda request, run_id: user)
    answer = client.post(f"/runs/{RUN}/ag-ui", content=content, headers={"content-type": kind})
    assert (answer.status_code, run.readers) == (status, 0), answer.text


@pytest.mark.parametrize("name", RUNS)
def test_vercels_chunks_open_and_close_what_they_name(name):
    answer = browser(FakeRun(numbered(RUNS[name]))).get(f"/runs/{RUN}/vercel")
    assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1"
    assert answer.text.endswith("data: [DONE]\n\n")
    chunks, is_open = read_sse(answer.text), set()
    assert [chunks[0]["type"], chunks[-1]["type"]] == ["start", "finish"]
    for each in chunks:
        kind, _, phase = each["type"].rpartition("-")
        if kind in ("text", "reasoning"):
            assert (each["id"] in is_open) == (phase != "start"), each
            (is_open.add if phase == "start" else is_open.discard if phase == "end" else id)(each["id"])
    assert not is_open
    assert [each["data"]["attempt"] for each in chunks if each["type"] == "data-flujo-withdrawn"] == [1] * (
        name == "retried"
    )
