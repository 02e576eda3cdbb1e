"""What `flujo lens watch` draws of a run that is under way, and what `flujo run --stream` prints: values in, text out."""

import io

import pytest
from rich.console import Console

from flujo_client.cli.lens_watch import _lines
from flujo_client.cli.live_tree import LiveTexts, bar, live_tree
from flujo_client.cli.saying import SpokenText, is_printed
from flujo_client.contract.stream import StreamEvent
from flujo_client.contract.trace import TraceNode


def drawn(renderable):
    console = Console(file=io.StringIO(), width=100)
    console.print(renderable)
    return console.file.getvalue()


def node(name, kind, status, *children, **rest):
    return TraceNode(name=name, kind=kind, status=status, children=list(children), **rest)


def attempt(address, step):
    return node("attempt 1", "attempt", "running", attributes={"key": f"run_1:{address}:{step}:1"})


def token(text, step="write", address="", **rest):
    data = {"event_kind": "part_delta", "delta": {"part_delta_kind": "text", "content_delta": text}}
    return StreamEvent("token", data, step, address, 1, **rest)


def run_of(*children):
    return node("story", "run", "running", *children, attributes={"tokens": 1200, "cost_usd": 0.5})


def test_a_step_shows_what_it_says_how_far_it_is_and_how_long_it_runs():
    texts = LiveTexts()
    for event in (
        token("Once "),
        token("upon\n"),
        StreamEvent("progress", {"done": 3, "total": 4, "text": "pages"}, "write"),
    ):
        texts.take(event)
    trace = run_of(
        node("plan", "step", "succeeded", duration_s=0.5),
        node("write", "step", "running", attempt("", "write"), offset_s=1.0),
    )
    lines = drawn(live_tree(trace, texts, 61.0)).splitlines()
    assert "story  running" in lines[0]
    assert {"1,200 tokens", "$0.5", "1 min 1 s"} <= {each.strip() for each in lines[0].split("  ")}
    assert ("succeeded  500 ms" in lines[1], "1 min 0 s" in lines[2]) == (True, True)
    assert ("█████ 3/4" not in lines[3], "█" * 15 + "░" * 5 + " 3/4  pages" in lines[3], "“Once upon”" in lines[4]) == (
        True,
        True,
        True,
    )


def test_what_a_run_waits_for_is_below_its_name():
    lines = drawn(live_tree(run_of(), LiveTexts(), 61.0, "Sleeps at nap until 12:00 (in 2 h).")).splitlines()
    assert lines[1].strip() == "Sleeps at nap until 12:00 (in 2 h)."


def test_a_container_has_a_bar_and_of_many_children_those_that_run():
    items = [node(f"item {at}", "item", "succeeded" if at < 90 else "running", duration_s=1.0) for at in range(100)]
    text = drawn(live_tree(run_of(node("each", "map", "running", *items)), LiveTexts(), 5.0))
    assert "90/100  100 items" in text
    assert [line for line in text.splitlines() if "item 9" in line and "running" in line]
    assert ("item 1 " in text, text.count("\n") < 15) == (False, True)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((0, 4, ""), "░" * 20 + " 0/4"),
        ((9, 4, "x"), "█" * 20 + " 9/4  x"),
        ((7, None, "files"), "7  files"),
        ((1, -1, ""), "1"),
    ],
)
def test_a_bar_stays_within_its_width(given, text):
    assert bar(*given).plain == text


def test_what_is_withdrawn_or_lost_is_no_longer_shown():
    texts = LiveTexts()
    for kind in ("withdrawn", "gap"):
        texts.take(token("a"))
        texts.take(StreamEvent(kind, {}, "write"))
        assert texts.text == {}


def test_plain_lines_are_whole_and_name_their_step():
    said = {}
    events = [
        token("one\ntwo "), token("inner", address="each:0"), token("words"),
        StreamEvent("step_end", {}, "write"), StreamEvent("withdrawn", {}, "write", "each:0"),
        token("lost"), StreamEvent("gap", {}), token("found\n"),
    ]  # fmt: skip
    assert [line for event in events for line in _lines(event, said)] == [
        "[write] one", "[write] two words", "[each/0/write] inner", "[each/0/write] withdrawn: its attempt failed, or its worker is gone",
        "some of the text is lost", "[write] found",
    ]  # fmt: skip


def test_the_spoken_text_is_printed_as_it_comes(capsys):
    spoken = SpokenText()
    spoken.take([token("On"), token("ce"), StreamEvent("withdrawn", {}, "write"), token("Twice"), StreamEvent("end")])
    told = capsys.readouterr()
    assert (told.out, spoken.text) == ("Once\nTwice\n", "Twice")
    assert told.err.split("\n")[:-1] == [
        "[write]",
        "this text is void: its attempt failed, or its worker is gone",
        "[write]",
    ]


def test_an_output_that_was_said_is_not_printed_again():
    assert is_printed("Once", " Once \n")
    assert not any(is_printed(*each) for each in [("Once", "Twice"), (1, "1"), ("", None)])


def test_a_message_begins_below_the_text_that_is_under_way(capsys):
    spoken = SpokenText()

    def events():
        yield token("On")
        spoken.end_line()
        assert capsys.readouterr().out == "On\n"

    spoken.take(events())
    assert capsys.readouterr().out == ""
