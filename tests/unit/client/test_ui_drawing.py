"""The drawings on the page of a run: the bars of its timeline, differences of answers, and values that cannot be shown."""

from datetime import UTC, datetime, timedelta

from flujo_client.serial import Packed
from flujo_client.ui.attempt import differences
from flujo_client.ui.reading import SHOWN, ValueReader
from flujo_client.ui.timeline import LEFT, draw_timeline
from flujo_client.ui.tree import TreeLine

BEGIN = datetime(2026, 11, 28, tzinfo=UTC)


def at(seconds):
    return BEGIN + timedelta(seconds=seconds)


def tried(created, started, ended):
    return {
        "key": "run::step:1",
        "created_at": at(created),
        "started_at": started and at(started),
        "ended_at": ended and at(ended),
    }


def drawn(*lines, seconds=10, is_over=True):
    return draw_timeline(lines, BEGIN, at(seconds), is_over=is_over).rows


def test_waiting_and_working_are_told_apart():
    step = TreeLine(
        name="step",
        kind="step",
        at="step",
        level=0,
        status="failed",
        tries=[tried(0, 2, 4), tried(4, 5, 10)],
        began=at(0),
        ended=at(10),
    )
    [row] = drawn(step)
    assert [bar.kind for bar in row.bars] == ["wait", "work", "wait", "work"]
    assert [round(bar.x - LEFT) for bar in row.bars] == [0, 138, 276, 345]
    assert row.label == "10 s, 2 attempts"


def test_what_never_ran_has_no_bar():
    [row] = drawn(TreeLine(name="later", kind="step", at="later", level=0, word="never ran"))
    assert (list(row.bars), row.label) == ([], "never ran")


def test_a_fan_out_is_a_bar_of_how_much_ran_at_once():
    counts = {"succeeded": 7}
    [row] = drawn(
        TreeLine(
            name="all",
            kind="map",
            at="all",
            level=0,
            status="succeeded",
            counts=counts,
            at_once={1: 1, 2: 4},
            began=at(0),
        )
    )
    assert [(bar.kind, round(bar.opacity, 3)) for bar in row.bars] == [("many", 0.385), ("many", 1.0)]


def test_of_many_children_twelve_are_drawn():
    children = [TreeLine(name=f"#{n}", kind="step", at=f"all#{n}", level=1) for n in range(40)]
    after = TreeLine(name="after", kind="step", at="after", level=0)
    assert [row.line.name for row in drawn(TreeLine(name="all", kind="map", at="all", level=0), *children, after)] == [
        "all",
        *(f"#{n}" for n in range(12)),
        "after",
    ]


def test_differences_are_of_whole_words_and_quoted_texts():
    assert differences("{'score': \"8\"}", '{"score": 8}') == [
        ("same", "{"),
        ("del", "'score'"),
        ("ins", '"score"'),
        ("same", ": "),
        ("del", '"8"'),
        ("ins", "8"),
        ("same", "}"),
    ]
    assert differences("a " * 5000, "b") == []


def test_a_value_says_why_it_is_not_shown():
    reader = ValueReader(None, shows=True)
    assert "no key 'k1'" in reader.value(b"e\x02k1sealed").gap
    assert "cannot be read" in reader.value(b"zdamaged").gap
    assert ValueReader(None, shows=False).value(b"j1").text == ""
    assert reader.value(None) is None
    long = reader.value(Packed.of(["x" * 100] * 10_000).stored)
    assert (len(long.text), long.is_cut) == (SHOWN, True)
    assert ValueReader(None, shows=True, hidden=["price"]).value(b'j{"price":3}').text == '{\n  "price": "***"\n}'
