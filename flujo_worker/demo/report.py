"""The demo's report: verdicts in, a table for people out. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flujo_worker.demo.license_facts import LicenseVerdict

ORDER = ("permissive", "copyleft", "proprietary", "unknown")


@dataclass(frozen=True, slots=True)
class Line:
    """One audited distribution; without a verdict its run failed, and `feedback` says why."""

    name: str
    version: str
    verdict: LicenseVerdict | None
    feedback: str | None = None


def report(lines: Sequence[Line]) -> Table:
    """Draw the report, grouped by category."""
    table = Table(title=f"Licences of {len(lines)} installed distributions", title_justify="left", expand=True)
    table.add_column("distribution", no_wrap=True)
    table.add_column("licence", overflow="fold", min_width=12, max_width=18)
    table.add_column("sure", justify="right", no_wrap=True)
    table.add_column("evidence", overflow="ellipsis", no_wrap=True, ratio=1)
    for category in (*ORDER, None):
        group = sorted((line for line in lines if _category(line) == category), key=lambda line: line.name)
        if group:
            table.add_section()
            table.add_row(f"[bold]{category or 'failed'}[/] ({len(group)})")
        for line in group:
            table.add_row(f"{line.name} [dim]{line.version}[/]", *(escape(cell) for cell in _cells(line)))
    return table


def summary(lines: Sequence[Line]) -> str:
    """Count the categories in one sentence."""
    counts = Counter(_category(line) or "failed" for line in lines)
    return ", ".join(f"{counts[name]} {name}" for name in (*ORDER, "failed") if counts[name])


def _category(line: Line) -> str | None:
    return None if line.verdict is None else line.verdict.category


def _cells(line: Line) -> tuple[str, str, str]:
    if line.verdict is None:
        return "", "", line.feedback or ""
    quote = " ".join(line.verdict.evidence.split()).removeprefix("License :: ").removeprefix("OSI Approved :: ")
    return line.verdict.spdx, f"{line.verdict.confidence:.0%}", quote
