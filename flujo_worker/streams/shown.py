"""Prepare the entries of an attempt for readers: without secrets, and with large results cut.

Of a text that comes in pieces, what may be the beginning of a secret is held back until more has come.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from flujo_client.contract.stream import StreamKind
from flujo_client.errors import SerializationError
from flujo_client.patterns import compiled
from flujo_client.redact import has_signs, redact, redact_tree
from flujo_client.serial import safe_serialize
from flujo_client.serial.tree import dumps

MOST_HELD: Final = 8192
"""Characters that are held back at most: a private key has fewer."""
_BEFORE: Final = 160
"""Characters of the text before that are looked at again: a name may be there whose value comes now."""
_PROBES: Final = ("a1b2c3d4e5f6g7h8i9", 'a" ', "a' ", "a@b", ".a1b2c3d4e5f6g7h8")
"""Texts that may come next. Where one changes how the text until now is shown, or is hidden itself, a secret may be unfinished."""
_MOST_WORD: Final = 4096
_WORD: Final = compiled(r"[\w.~+/=-]+")
_OF_PROSE: Final = re.compile(r"[A-Z]?[a-z]*|(?=[\x00-\x7f]*[^\x00-\x7f])[^\W\d_]+")
"""Words that are not the beginning of a key."""
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


class LiveRedaction:
    """Redacts one text that comes in pieces; together they read as `redact` shows the whole text."""

    def __init__(self) -> None:
        self._before = self._withheld = ""

    def feed(self, piece: str) -> str:
        """Take the next piece; return the text that can be shown."""
        self._withheld += piece
        word = _last_word(self._before + self._withheld)
        cuts = [len(self._withheld)] if _OF_PROSE.fullmatch(word) else []
        cuts += [len(self._withheld) - len(word)] if word else []
        for cut in cuts:
            if cut > 0 and self._is_whole(self._before + self._withheld[:cut]):
                return self._show(cut)
        return self.rest() if len(self._withheld) > MOST_HELD else ""

    def rest(self) -> str:
        """Return the withheld rest at the end of the text."""
        return self._show(len(self._withheld))

    def _show(self, cut: int) -> str:
        now, self._withheld = self._withheld[:cut], self._withheld[cut:]
        known, whole = redact(self._before), redact(self._before + now)
        self._before = (self._before + now)[-_BEFORE:]
        return whole[_common(known, whole) :]

    def _is_whole(self, text: str) -> bool:
        """Return whether a text cannot end within a secret."""
        if not has_signs(text):
            return True
        shown = redact(text)
        return all(redact(text + each) == shown + each for each in _PROBES)


def _last_word(text: str) -> str:
    """Return the word that a text ends with. It is read backwards: a search would look from each character to the end of its word."""
    found = _WORD.match(text[: -_MOST_WORD - 1 : -1])
    return text[-len(found[0]) :] if found else ""


def _common(one: str, other: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    if other.startswith(one):
        return len(one)
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


class _Part(NamedTuple):
    kind: StreamKind
    at: int
    name: str
    of: str


class ShownEntries:
    """Prepares the entries of one attempt."""

    def __init__(self) -> None:
        self._texts: dict[_Part, LiveRedaction] = {}
        self._printed: LiveRedaction | None = None

    def prepare(self, kind: StreamKind, data: Mapping[str, Any]) -> list[Entry]:
        """Return the entries that can be written now: first the text that was held back of the part that this one ends."""
        event = data.get("event_kind")
        if event == "part_delta" and (text := text_of(data)):
            return self._delta(kind, data, text)
        if kind == "log" and "text" in data:
            self._printed = self._printed or LiveRedaction()
            return self._logged(data, self._printed.feed(data["text"]))
        if kind in _BESIDE:
            return [(kind, cut(redact_tree(dict(data))))]
        held = self._withheld()
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

    def _withheld(self) -> list[Entry]:
        """Return the text that was held back, as deltas."""
        texts, self._texts = self._texts, {}
        held: list[Entry] = []
        for part, redaction in texts.items():
            if text := redaction.rest():
                delta = {part.name: text, "part_delta_kind": part.of}
                held.append((part.kind, {"index": part.at, "delta": delta, "event_kind": "part_delta"}))
        return held

    def _logged(self, data: Mapping[str, Any], text: str) -> list[Entry]:
        return [("log", cut({**data, "text": text}))] if text else []


def text_of(data: Mapping[str, Any]) -> str:
    """Return the text that a delta adds to its part; empty for other entries."""
    delta = data.get("delta") if data.get("event_kind") == "part_delta" else None
    return "" if delta is None else str(delta.get(_text_name(delta)) or "")


def merged(before: Entry, after: Entry) -> Entry | None:
    """Return one delta for two of the same part; None where they are not."""
    (kind, one), (other_kind, other) = before, after
    first, second = one.get("delta"), other["delta"]
    name, is_same = _text_name(second), kind == other_kind and one.get("index") == other.get("index")
    if first is None or not is_same or not isinstance(first.get(name), str):
        return None
    if any(value is not None and first.get(key) != value for key, value in second.items() if key != name):
        return None
    return kind, {**one, "delta": {**first, name: first[name] + second[name]}}


def _text_name(delta: Mapping[str, Any]) -> str:
    return next((name for name in _TEXTS if isinstance(delta.get(name), str)), "")


def cut(data: dict[str, Any]) -> dict[str, Any]:
    """Cut long texts and lists in data that is too large, and mark where. What is no text that can be stored becomes one."""
    try:
        is_small = len(dumps(data)) <= MOST_BYTES
    except SerializationError:  # such as a printed file name that is not UTF-8
        return cut(safe_serialize(data))
    return data if is_small else _cut(data, _MOST_DEPTH)


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
