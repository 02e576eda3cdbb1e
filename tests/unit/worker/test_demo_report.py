"""The demo's report as people see it: grouped, whole at 80 columns, with obligations."""

import io

import pytest
from flujo_demo.license_audit import AuditFinding
from flujo_demo.license_facts import LicenseVerdict
from flujo_demo.report import answers, findings_of, killed_text, notes, outline, report, summary
from rich.console import Console

from flujo_client.cli.render import trace_tree
from flujo_client.contract.trace import TraceEvent, TraceNode


def found(name, category="permissive", note="", evidence="MIT", confidence=0.95):
    verdict = LicenseVerdict(spdx="MIT", category=category, confidence=confidence, evidence=evidence)
    return AuditFinding(distribution=name, version="1.0", verdict=verdict, note=note)


GROUPS = {
    "failed": [AuditFinding(distribution="lost", note="it is gone [1]")],
    "permissive": [found("zebra"), found("ant")],
    "copyleft": [found("one", "copyleft", "offer the source"), found("two", "copyleft", "offer the source")],
}


def drawn(table, width=80):
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def test_findings_come_by_category_and_name():
    assert [each.distribution for each in findings_of(GROUPS)] == ["ant", "zebra", "one", "two", "lost"]


def test_the_table_has_a_heading_with_its_count_for_each_category():
    shown = drawn(report(GROUPS))
    heads = ["permissive (2)", "ant 1.0", "copyleft (2)", "one 1.0", "failed (1)", "lost"]
    assert sorted(heads, key=shown.index) == heads
    assert "proprietary" not in shown


def test_the_short_table_leaves_out_permissive_licences_that_the_model_was_sure_of():
    unsure = found("moth", confidence=0.5)
    shown = drawn(report(GROUPS | {"permissive": [*GROUPS["permissive"], unsure]}, is_full=False))
    assert [name for name in ("ant", "zebra", "moth", "one", "two", "lost") if f"{name} " in shown] == [
        "moth",
        "one",
        "two",
        "lost",
    ]
    assert "permissive (3)" in shown


def test_an_outline_shows_one_item_and_what_went_wrong():
    """No attempts and no events; each item that went well is a line but the first."""
    items = [item(number) for number in range(1, 6)]
    items[3] = items[3].model_copy(update={"status": "failed"})
    each = TraceNode(name="audit each", kind="map", status="succeeded", children=items, attributes={"flujo.x": 1})
    shown = drawn(trace_tree(outline(TraceNode(name="run", kind="run", status="succeeded", children=[each]))))
    assert (shown.count("  item  "), shown.count("judge"), shown.count("attempt")) == (5, 2, 0)
    assert "flujo.x" not in shown


@pytest.mark.parametrize(
    ("pid", "again", "said"),
    [
        (None, 0, "The run was over before a worker could be killed."),
        (7, 1, "Worker 7 was killed in the middle: 1 attempt was done again by other workers."),
        (7, 3, "Worker 7 was killed in the middle: 3 attempts were done again by other workers."),
    ],
)
def test_what_became_of_the_killed_worker(pid, again, said):
    assert killed_text(pid, again) == said


@pytest.mark.parametrize("width", [80, 120])
def test_a_long_quote_is_cut_and_nothing_is_wider_than_the_terminal(width):
    shown = drawn(report({"permissive": [found("a" * 30, evidence="Permission is hereby granted " * 9)]}), width)
    assert max(map(len, shown.splitlines())) <= width
    assert "…" in shown


def test_a_note_stands_once_with_all_it_is_about():
    shown = drawn(notes(GROUPS))
    assert shown.count("offer the source") == 1
    assert "one, two" in shown
    assert "it is gone [1]" in shown


def test_the_summary_counts_what_there_is():
    assert summary(GROUPS) == "2 permissive, 2 copyleft, 1 failed"


def item(number, *events):
    """An item of the fan-out whose one attempt told these events."""
    told = [TraceEvent(name=name, data=data) for name, data in events]
    attempt = TraceNode(name="attempt 1", kind="attempt", status="succeeded", events=told)
    step = TraceNode(name="judge", kind="step", status="succeeded", children=[attempt])
    return TraceNode(name=f"audit each#{number}", kind="item", status="succeeded", children=[step])


def repaired(*transforms):
    return "output.coercion.success", {"transforms": list(transforms)}


def test_answers_are_told_by_what_became_of_them():
    """What was repaired, how, and what was refused and asked again; what came as asked for is not a line."""
    refused = "output.coercion.fail", {"rule": "cut"}
    items = [item(1, repaired("region"), repaired("str->float")), item(2), item(3, refused), item(4, refused)]
    trace = TraceNode(name="run", kind="run", status="succeeded", children=items)
    shown = drawn(answers(trace, ["ant", "bee", "cat", "dog"]), 100)
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if line.startswith("│")]
    assert lines == [
        ["refused, asked again", "cut", "2: cat, dog"],
        ["repaired", "region, str->float", "1: ant"],
    ]
