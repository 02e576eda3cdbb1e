"""Format single values for people: time spans, costs, and texts from users or models. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from flujo_client.address import end_of
from flujo_client.explain.sentence import counted as counted  # noqa: PLC0414 - commands import it from here

SHORT = 8
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < MINUTE_S:
        return f"{seconds:.2f} s"
    if seconds < HOUR_S:
        return f"{seconds // MINUTE_S:.0f} min {seconds % MINUTE_S // 1:.0f} s"
    if seconds < DAY_S:
        return f"{seconds // HOUR_S:.0f} h {seconds % HOUR_S // MINUTE_S:.0f} min"
    return f"{seconds // DAY_S:.0f} d {seconds % DAY_S // HOUR_S:.0f} h"


def age(seconds: float) -> str:
    """Write how long ago something was, rounded as people would."""
    for size, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0) // 1:.0f} s"


def local_time(at: datetime) -> str:
    """Write a moment in the time zone of this machine, which it names."""
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S %Z}"


def cost(dollars: float) -> str:
    """Write a cost in US dollars, without trailing zeros."""
    return f"${f'{dollars:.6f}'.rstrip('0').rstrip('.')}"


def short(run_id: str) -> str:
    """Write the end of a run's id, which names it in every command that takes a run: 32 random bits. An id without such an end stays whole."""
    return end_of(run_id, SHORT)


def printable(text: str) -> str:
    """Return a text without what would move a terminal: control characters but newline and tab are shown as escapes."""
    shown = (each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text)
    return "".join(shown)


def written(value: Any) -> str:
    """Write a value: a text as it is, anything else as JSON on several lines."""
    return printable(value if isinstance(value, str) else _json(value, indent=True))


def in_a_line(value: Any, length: int = -1) -> str:
    """Write a value on one line, cut after `length` characters; -1 cuts nothing."""
    text = value if isinstance(value, str) else _json(value, indent=False)
    line = printable(" ".join(text.split()))
    return line if length < 0 or len(line) <= length else line[:length] + "…"


def _json(value: Any, *, indent: bool) -> str:
    import orjson

    from flujo_client.serial import safe_serialize

    return orjson.dumps(safe_serialize(value), option=orjson.OPT_INDENT_2 if indent else 0).decode()
