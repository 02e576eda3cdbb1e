"""What an attempt streams: nothing of a secret, however its text is cut; bounded; and nothing at all where nobody asks for it."""

import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.redact import redact
from flujo_worker import progress, stream_text
from flujo_worker.streams.shown import MOST_BYTES, MOST_HELD, LiveRedaction, cut
from flujo_worker.streams.writers import MOST_WAITING, Writer
from flujo_worker.testing import LocalEngine

KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nBAQEFAASCBKcw\n-----END PRIVATE KEY-----"
SECRETS = {
    "sk-abcdefghijklmnop1234": "abcdefg",
    'password: "correct horse battery"': "horse",
    "DB_PASSWORD=hunter22 ": "hunter",
    "postgres://me:hunter22@host/db": "hunter",
    "Authorization: Bearer abcdef0123456789": "abcdef",
    "AKIAABCDEFGHIJKLMNOP ": "ABCDEF",
    "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl": "hbGci",
    "Cookie: session=abcdef; other=ghijkl\n": "abcdef",
    KEY: "MIIEv",
}
"""Each with a part of it that nobody may see."""
TEXTS = st.sampled_from(["The key is here: ", "see ", "Über ", "日本語", "42 of 7. ", "a-b=c ", "\n", *SECRETS])


def fed(pieces):
    redaction = LiveRedaction()
    return [*map(redaction.feed, pieces), redaction.rest()]


@given(st.lists(TEXTS, max_size=6).map("".join), st.lists(st.integers(1, 12), min_size=1))
def test_a_text_in_pieces_shows_what_the_whole_shows(text, sizes):
    pieces, at = [], 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    shown = "".join(fed(pieces))
    assert [
        hidden
        for secret, hidden in SECRETS.items()
        if secret in text and hidden in shown and hidden not in redact(text)
    ] == []
    if not any(secret in text for secret in SECRETS):
        assert shown == text


def test_prose_is_shown_as_it_comes():
    assert fed(["Once ", "upon", " a ", "time"]) == ["Once ", "upon", " a ", "time", ""]


@pytest.mark.parametrize("text", ["a" * 100_000, "\u6f22" * 4095 + "1", "a1" * 50_000])
def test_a_long_word_costs_no_more_than_its_length(text):
    """A search for its beginning took 8 seconds, in the one thread that writes the streams of all attempts."""
    redaction, began = LiveRedaction(), time.process_time()
    shown = [redaction.feed(text[: len(text) // 2]), redaction.feed(text[len(text) // 2 :]), redaction.rest()]
    assert "".join(shown) == text
    assert time.process_time() - began < 0.1 + len(text) / 200_000


def test_what_is_held_back_is_bounded():
    shown = fed(["password: '", "x" * MOST_HELD, "y"])
    assert "".join(shown).startswith("password: ***")
    assert shown[1]


def writer(calls):
    return Writer("run_1", ":tell", 1, 1, lambda each: calls.append(each.is_urgent))


def delta(text, index=0):
    return {"index": index, "delta": {"content_delta": text, "part_delta_kind": "text"}, "event_kind": "part_delta"}


def test_deltas_of_one_part_are_one_entry():
    stream = writer([])
    for event in (delta("a "), delta("b "), delta("c ", 1), delta("d ", 0)):
        stream.put("token", event)
    assert [data["delta"]["content_delta"] for _, data in stream.take()] == ["a b ", "c ", "d "]


def test_what_nobody_writes_is_dropped_and_missed():
    stream = writer([])
    for number in range(MOST_WAITING + 10):
        stream.put("log", {"number": number})
    stream.put("step_end", {})
    kinds = [kind for kind, _ in stream.take()]
    assert kinds == ["log"] * MOST_WAITING + ["gap", "step_end"]
    stream.put("log", {})
    assert stream.take() == []


def test_the_first_token_much_text_and_a_question_go_at_once_and_all_else_together():
    calls = []
    stream = writer(calls)
    for kind, data in [
        ("step_start", {}),
        ("token", delta("a")),
        ("token", delta("b")),
        ("token", delta("c" * 3000)),
        ("log", {"text": "d"}),
        ("question", {"message": "e"}),
    ]:
        stream.put(kind, data)
        stream.take()
    assert calls == [False, True, False, True, False, True]
    writer(calls).put("step_end", {})
    assert not calls[-1]


def test_a_batch_that_was_lost_is_missed_and_the_end_is_written_again():
    stream = writer([])
    stream.put("token", delta("a "))
    stream.put("step_end", {})
    stream.lose(stream.take())
    stream.put("token", delta("b "))
    assert [kind for kind, _ in stream.take()] == ["gap", "step_end"]


def test_large_results_are_cut_and_say_so():
    small = cut({"content": "x" * 2 * MOST_BYTES, "list": [*range(100)], "name": "look"})
    assert small["name"] == "look"
    assert small["content"].endswith(f"… ({2 * MOST_BYTES} characters)")
    assert small["list"][-1] == "… (100 items)"


def test_a_text_that_cannot_be_stored_costs_no_entry():
    """It raised, in the one thread that writes the streams of all attempts, and their entries were lost with it."""
    stream = writer([])
    stream.put("log", {"text": "a\udcff\n"})
    stream.put("progress", {"done": 1, "total": 2, "text": "\ud800"})
    assert [data["text"] for _, data in stream.take()] == ["a\ufffd\n", "\ufffd"]


@pytest.mark.parametrize(
    "call", [lambda: progress("half"), lambda: progress(1, "two"), lambda: progress(True), lambda: stream_text(b"x")]
)
def test_what_is_no_progress_and_no_text_is_refused(call):
    with pytest.raises(TypeError, match=r"progress|stream_text"):
        call()


def test_outside_of_attempts_nothing_is_told():
    progress(1, 2, "half")
    stream_text("hello")


def loaded():
    """The modules that only streamed attempts need."""
    return [name for name in sys.modules if name.startswith(("flujo_worker.streams.", "flujo_worker.agents.streamed"))]


def test_a_step_without_a_stream_pays_one_check(monkeypatch):
    """Nothing of the streams is loaded, and nothing called, for a run that is not streamed; `LocalEngine` has no streams."""

    def work(data: str) -> str:
        progress(1, 1)
        return data

    for name in loaded():
        monkeypatch.delitem(sys.modules, name)
    with LocalEngine() as engine:
        pipeline = Pipeline([Step("work", work, StepConfig(stream=True))], stream=True)
        assert engine.run(pipeline, "x").output == "x"
    assert loaded() == []
