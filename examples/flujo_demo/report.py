"""The demo's report: findings by category in, tables for people out. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from flujo_demo.license_audit import SURE, Audited, AuditFinding
from flujo_demo.ruling import ruling_text
from rich.markup import escape
from rich.table import Table

from flujo_client.cli.format import cost, counted
from flujo_client.contract.approval import Approval
from flujo_client.contract.limits import UsageLimits
from flujo_client.contract.trace import TraceNode

_OUTLINED = ("id", "attempts")
ORDER = ("permissive", "copyleft", "proprietary", "unknown", "failed")


def findings_of(groups: Mapping[str, Sequence[AuditFinding]]) -> list[AuditFinding]:
    """Return all findings, category by category, each sorted by name."""
    return [each for name in ORDER for each in sorted(groups.get(name, ()), key=lambda each: each.distribution)]


def report(groups: Mapping[str, Sequence[AuditFinding]], *, is_full: bool = True) -> Table:
    """Draw what was found, grouped by category; where it is not to be full, of permissive licences the doubtful ones alone."""
    findings = findings_of(groups)
    table = Table(title=f"Licences of {len(findings)} installed distributions", title_justify="left", expand=True)
    table.add_column("distribution", no_wrap=True)
    table.add_column("licence", overflow="fold", min_width=12, max_width=18)
    table.add_column("sure", justify="right", no_wrap=True)
    table.add_column("evidence", overflow="ellipsis", no_wrap=True, ratio=1)
    for category in ORDER:
        group = [each for each in findings if each.category == category]
        if group:
            table.add_section()
            table.add_row(f"[bold]{category}[/] ({len(group)})")
        for each in group if is_full else filter(is_to_be_seen, group):
            table.add_row(f"{escape(each.distribution)} [dim]{each.version}[/]", *map(escape, _cells(each)))
    return table


def is_to_be_seen(finding: AuditFinding) -> bool:
    """Return whether a person should look at a finding: anything but a permissive licence that the model was sure of."""
    return finding.category != "permissive" or finding.verdict is None or finding.verdict.confidence < SURE


def outline(trace: TraceNode) -> TraceNode:
    """Return a trace without its attempts, events and details: where the run went, and how each place ended.

    Of items that went well the first one shows what the others repeat.
    """
    places = [each for each in trace.children if each.kind not in ("attempt", "tool")]
    repeated = [each for each in places if each.kind == "item" and each.status == "succeeded"][1:]
    children = [outline(each.model_copy(update={"children": []}) if each in repeated else each) for each in places]
    kept = {key: value for key, value in trace.attributes.items() if key in _OUTLINED}
    return trace.model_copy(update={"children": children, "events": [], "attributes": kept})


def killed_text(pid: int | None, again: int) -> str:
    """Describe what happened to the worker that was to be killed.

    Args:
        pid: the process that was killed; None when the run was over before.
        again: how many attempts were claimed a second time.
    """
    if pid is None:
        return "The run was over before a worker could be killed."
    redone = f"{counted(again, 'attempt')} {'was' if again == 1 else 'were'} done again by other workers"
    return f"Worker {pid} was killed in the middle: {redone}."


def notes(groups: Mapping[str, Sequence[AuditFinding]]) -> Table:
    """Draw what to do, with the distributions that it is about."""
    about: dict[str, list[str]] = {}
    for each in findings_of(groups):
        if each.note:
            about.setdefault(each.note, []).append(each.distribution)
    table = Table(title="What to do", title_justify="left", expand=True, show_header=False, show_lines=True)
    table.add_column("what", ratio=3)
    table.add_column("distributions", ratio=2)
    for note, names in about.items():
        table.add_row(escape(note), escape(", ".join(names)))
    return table


def approval(found: Audited, questions: Sequence[Approval]) -> str:
    """Describe the result of the question about licences that are proprietary or unknown."""
    if found.ruling is None:
        return "No licence is proprietary or unknown, so no approval was needed."
    return ruling_text(found.ruling, is_answered=any(each.state == "answered" for each in questions))


def spent(tokens: int, cost_usd: float, limits: UsageLimits) -> str:
    """Describe how much of the budget was used, as measured."""
    dollars, most = limits.total_cost_usd_limit or 0.0, limits.total_tokens_limit or 0
    return f"Spent {cost(cost_usd)} of {cost(dollars)}, and {tokens:,} of {most:,} tokens."


def answers(trace: TraceNode, names: Sequence[str]) -> Table:
    """Draw how the model's answers came: as asked for, repaired and how, refused and asked again.

    Args:
        trace: the run's.
        names: the distributions, in the order of the run's items.
    """
    about: dict[tuple[str, str], list[str]] = {}
    for item in _under(trace, "item"):
        name = names[int(item.name.rpartition("#")[2]) - 1]
        for attempt in _under(item, "attempt"):
            if words := _came(attempt):
                about.setdefault(words, []).append(name)
    table = Table(title="How the answers came", title_justify="left", expand=True)
    table.add_column("answer", no_wrap=True)
    table.add_column("how", no_wrap=True)
    table.add_column("distributions", ratio=1, overflow="ellipsis", no_wrap=True)
    for (what, how), those in sorted(about.items()):
        table.add_row(what, how, escape(f"{len(those)}: {', '.join(sorted(those))}"))
    return table


def _came(attempt: TraceNode) -> tuple[str, str] | None:
    """Describe what AROS did with an attempt's answer, in the terms of its events; None where it had nothing to do."""
    done = [event.data for event in attempt.events if event.name == "output.coercion.success"]
    refused = [event.data for event in attempt.events if event.name == "output.coercion.fail"]
    if refused:
        return "refused, asked again", str(refused[0]["rule"])
    return ("repaired", ", ".join(name for data in done for name in data["transforms"])) if done else None


def _under(node: TraceNode, kind: str) -> Iterator[TraceNode]:
    for child in node.children:
        if child.kind == kind:
            yield child
        yield from _under(child, kind)


def summary(groups: Mapping[str, Sequence[AuditFinding]]) -> str:
    """Count the categories in one sentence."""
    return ", ".join(f"{len(groups[name])} {name}" for name in ORDER if groups.get(name))


def _cells(finding: AuditFinding) -> Iterator[str]:
    if verdict := finding.verdict:
        quote = " ".join(verdict.evidence.split()).removeprefix("License :: ").removeprefix("OSI Approved :: ")
        yield from (verdict.spdx, f"{verdict.confidence:.0%}", quote)
