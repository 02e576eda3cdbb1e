"""The demo's report as people see it: grouped, whole at 80 columns, with what to heed."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from flujo_client.contract.trace import TraceEvent, TraceNode
from flujo_worker.demo.license_audit import AuditFinding
from flujo_worker.demo.license_facts import LicenseVerdict
from flujo_worker.demo.report import answers, findings_of, notes, report, summary


def found(name, category="permissive", note="", evidence="MIT"):
    verdict = LicenseVerdict(spdx="MIT", category=category, confidence=0.95, evidence=evidence)
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
    """What was repaired, how, and what was refused and asked again; what came as asked for is no line."""
    refused = "output.coercion.fail", {"rule": "cut"}
    items = [item(1, repaired("region"), repaired("str->float")), item(2), item(3, refused), item(4, refused)]
    trace = TraceNode(name="run", kind="run", status="succeeded", children=items)

    shown = drawn(answers(trace, ["ant", "bee", "cat", "dog"]), 100)

    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if line.startswith("│")]
    assert lines == [
        ["refused, asked again", "cut", "2: cat, dog"],
        ["repaired", "region, str->float", "1: ant"],
    ]
