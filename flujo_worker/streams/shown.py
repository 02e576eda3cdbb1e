"""The entries of an attempt as readers may see them: without secrets, and large results cut.

In: entries, in order. Out: the same, with what may be the beginning of a secret held back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from flujo_client.contract.stream import StreamKind
from flujo_client.redact import redact_tree
from flujo_client.serial.tree import dumps
from flujo_worker.streams.live_redaction import LiveRedaction

MOST_BYTES: Final = 16_384
"""Bytes of JSON above which the texts in a tool's call or result, or in a log line, are cut."""
_MOST_TEXT, _MOST_ITEMS, _MOST_DEPTH = 2000, 20, 5
_TEXTS: Final = ("content_delta", "args_delta")
_STARTS: Final = {
    "text": ("content", "content_delta"),
    "thinking": ("content", "content_delta"),
    "tool-call": ("args", "args_delta"),
}
"""Of each kind of part, the text that it begins with, and the name of what follows it."""
_BESIDE: Final = frozenset({"log", "progress", "gap"})
"""The kinds of entries that may come in the middle of a part."""

Entry = tuple[StreamKind, Mapping[str, Any]]


class _Part(NamedTuple):
    kind: StreamKind
    at: int
    name: str
    of: str


class ShownEntries:
    """Makes the entries of one attempt fit to be shown."""

    def __init__(self) -> None:
        self._texts: dict[_Part, LiveRedaction] = {}
        self._printed: LiveRedaction | None = None

    def of(self, kind: StreamKind, data: Mapping[str, Any]) -> list[Entry]:
        """Return what can be shown with this entry: before it what was held back of the part that it ends."""
        if not data and not self._texts and self._printed is None:
            return [(kind, data)]
        event = data.get("event_kind")
        if event == "part_delta" and (text := text_of(data)):
            return self._delta(kind, data, text)
        if kind == "log" and "text" in data:
            self._printed = self._printed or LiveRedaction()
            return self._logged(data, self._printed.feed(data["text"]))
        if kind in _BESIDE:
            return [(kind, cut(redact_tree(dict(data))))]
        held = self._held()
        if self._printed is not None and kind in ("step_end", "withdrawn", "question"):
            held += self._logged({}, self._printed.rest())
        if event == "part_start" and (begun := self._begun(kind, data)) is not None:
            return [*held, begun]
        shown = redact_tree(dict(data))
        is_text = (data.get("part") or {}).get("part_kind") in ("text", "thinking")
        return [*held, (kind, shown if is_text else cut(shown))]

    def _delta(self, kind: StreamKind, data: Mapping[str, Any], text: str) -> list[Entry]:
        delta = data["delta"]
        part = _Part(kind, data["index"], _text_name(delta), delta["part_delta_kind"])
        shown = self._texts.setdefault(part, LiveRedaction()).feed(text)
        return [(kind, {**data, "delta": {**delta, part.name: shown}})] if shown else []

    def _begun(self, kind: StreamKind, data: Mapping[str, Any]) -> Entry | None:
        part = data["part"]
        text, following = _STARTS.get(part["part_kind"], ("", ""))
        if not isinstance(part.get(text), str):
            return None
        of = part["part_kind"].replace("-", "_")
        redaction = self._texts[_Part(kind, data["index"], following, of)] = LiveRedaction()
        return kind, {**redact_tree(dict(data)), "part": {**redact_tree(part), text: redaction.feed(part[text])}}

    def _held(self) -> list[Entry]:
        """Return deltas of what was held back of parts that have ended."""
        texts, self._texts = self._texts, {}
        rest = ((part, text.rest()) for part, text in texts.items())
        return [
            (
                part.kind,
                {
                    "index": part.at,
                    "delta": {part.name: text, "part_delta_kind": part.of},
                    "event_kind": "part_delta",
                },
            )
            for part, text in rest
            if text
        ]

    def _logged(self, data: Mapping[str, Any], text: str) -> list[Entry]:
        return [("log", cut({**data, "text": text}))] if text else []


def text_of(data: Mapping[str, Any]) -> str:
    """Return what a delta adds to the text of its part; empty for all else."""
    delta = data.get("delta") if data.get("event_kind") == "part_delta" else None
    return "" if delta is None else str(delta.get(_text_name(delta)) or "")


def merged(before: Entry, after: Entry) -> Entry | None:
    """Return one delta for two of the same part; None where they are not."""
    (kind, one), (other_kind, other) = before, after
    first, second = one.get("delta"), other["delta"]
    name = _text_name(second)
    if (
        kind != other_kind
        or first is None
        or one.get("index") != other.get("index")
        or not isinstance(first.get(name), str)
    ):
        return None
    if any(value is not None and first.get(key) != value for key, value in second.items() if key != name):
        return None
    return kind, {**one, "delta": {**first, name: first[name] + second[name]}}


def _text_name(delta: Mapping[str, Any]) -> str:
    return next((name for name in _TEXTS if isinstance(delta.get(name), str)), "")


def cut(data: dict[str, Any]) -> dict[str, Any]:
    """Return data of a bounded size: what is left out of long texts and lists is marked."""
    return data if len(dumps(data)) <= MOST_BYTES else _cut(data, _MOST_DEPTH)


def _cut(tree: Any, depth: int) -> Any:
    if isinstance(tree, str):
        return tree if len(tree) <= _MOST_TEXT else f"{tree[:_MOST_TEXT]}… ({len(tree)} characters)"
    if not isinstance(tree, (dict, list)):
        return tree
    if depth == 0:
        return f"… ({len(tree)} items)"
    if isinstance(tree, dict):
        kept: Any = {key: _cut(each, depth - 1) for key, each in list(tree.items())[:_MOST_ITEMS]}
        return kept if len(tree) <= _MOST_ITEMS else {**kept, "…": f"({len(tree)} items)"}
    kept = [_cut(each, depth - 1) for each in tree[:_MOST_ITEMS]]
    return kept if len(tree) <= _MOST_ITEMS else [*kept, f"… ({len(tree)} items)"]
