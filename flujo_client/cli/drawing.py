"""Draw tables, facts and sections for the command line, legible at 80 columns; texts of users or models cannot control the terminal. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flujo_client.cli.format import printable

Cell = Text | str | int | None
_NUMBERS = (
    *("attempts", "at", "took", "tokens", "cost", "age", "ended", "failed", "of", "runs", "questions", "waiting"),
    *("coercions", "per 100", "refused", "SOE", "skipped", "precheck failed"),
)
"""The columns that are aligned to the right."""
_OF_COLOURS = {
    "green": ("succeeded", "ok"),
    "red": ("failed", "not ok", "error", "critical"),
    "yellow": ("cancelled", "expired", "warning"),
    "magenta": ("parked", "paused"),
    "cyan": ("running", "note"),
}
_COLOURS = {word: colour for colour, words in _OF_COLOURS.items() for word in words}


def coloured(text: str, word: str | None = None) -> Text:
    """Draw a status or a level in its colour, or a text in that of a word."""
    return Text(printable(text), _COLOURS.get(text if word is None else word, ""))


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, wraps: Collection[str] | None = None) -> Table:
    """Draw rows under a heading, without lines. If space is short, the columns of `wraps` wrap and the others do not; None: all do."""
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in columns:
        is_kept = wraps is not None and name not in wraps
        drawn.add_column(name, no_wrap=is_kept, overflow="fold", justify="right" if name in _NUMBERS else "left")
    return _filled(drawn, rows)


def grid(rows: Iterable[Sequence[Cell]], *, space: int = 2) -> Table:
    """Draw rows side by side, without a heading."""
    return _filled(Table.grid(padding=(0, space)), rows)


def facts(named: Iterable[tuple[str, Cell]]) -> Table:
    return grid((Text(printable(name), "dim", overflow="fold"), value) for name, value in named)


def section(title: str, body: RenderableType) -> Group:
    return Group("", Text(printable(title), "bold"), Padding(body, (0, 0, 0, 2), expand=False))


def _filled(drawn: Table, rows: Iterable[Sequence[Cell]]) -> Table:
    for row in rows:
        drawn.add_row(*map(_cell, row))
    return drawn


def _cell(value: Cell) -> Text:
    if isinstance(value, Text):
        return value
    return Text("" if value is None else f"{value:,}" if isinstance(value, int) else printable(value), overflow="fold")
