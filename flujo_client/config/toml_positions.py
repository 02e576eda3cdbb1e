"""`flujo.toml` as a text: its values, and the line of each.

The parser of the standard library reports no positions, so the text is scanned once before, which also finds what would cost the parser
time without end. A `SettingsError` has file, line and column, and quotes no value: it may be a secret.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flujo_client.errors import SettingsError

LARGEST, DEEPEST = 1_048_576, 32
"""Bytes of a file; brackets within brackets, and parts of a key."""

Key = tuple[str, ...]

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+|\#[^\n]*) | (?P<newline>\n)
    | (?P<text>"{3}(?:\\.|[^\\])*?"{3,5} | '{3}.*?'{3,5})
    | (?P<unclosed>"{3}|'{3})
    | (?P<quoted>"(?:\\.|[^"\\\n])*" | '[^'\n]*')
    | (?P<mark>[][{}=.,])
    | (?P<bare>[^][{}=.,\s"'\#]+ | .)""",
    re.VERBOSE | re.DOTALL,
)
_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_ENDLESS = re.compile(r"\d[\d_]{4000,}")
_DEEPER = {"[": 1, "{": 1, "]": -1, "}": -1}
_TWICE = ("Cannot overwrite", "Cannot declare", "Cannot redefine", "Cannot mutate")


@dataclass
class Written:
    """The contents of a file, with the first line of each key and table: its own, else that of its first entry."""

    path: Path
    tree: dict[str, Any] = field(default_factory=dict)
    lines: dict[Key, int] = field(default_factory=dict)

    def line(self, key: Key) -> int | None:
        """Find the line of a key, else of what it is in itself."""
        return next((self.lines[key[:end]] for end in range(len(key), 0, -1) if key[:end] in self.lines), None)

    def rename(self, name: str, to: str) -> None:
        """Read a key, or a table, as if it had another name."""
        self.tree[to] = self.tree.pop(name)
        self.lines = {(to, *key[1:]) if key[:1] == (name,) else key: line for key, line in self.lines.items()}


def read(path: Path) -> Written:
    """Read a file. Raises SettingsError: it cannot be read, is too large, is not TOML, or has a key twice."""
    text = _text(path)
    written, statements = Written(path), _statements(path, text)
    for key, line in statements:
        written.lines.setdefault(key, line)
    for key, line in statements:
        for end in range(1, len(key)):
            written.lines.setdefault(key[:end], line)
    try:
        written.tree = tomllib.loads(text)
    except ValueError as error:
        raise _refusal(written, text, statements, str(error)) from None
    return written


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})", suggestion="check the path") from None
    if len(data) > LARGEST:
        way_out = "check the path: it is not a flujo.toml"
        raise SettingsError(f"{path}: the file is larger than {LARGEST} bytes", suggestion=way_out)
    if data.startswith(b"\xef\xbb\xbf"):
        raise SettingsError(f"{path}:1:1: begins with a byte order mark", suggestion="save it as UTF-8 without one")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line, column = _position(data.decode(errors="replace"), len(data[: error.start].decode()))
        raise SettingsError(f"{path}:{line}:{column}: is not UTF-8", suggestion="save it as UTF-8") from None


def _position(text: str, at: int) -> tuple[int, int]:
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def _statements(path: Path, text: str) -> list[tuple[Key, int]]:
    """List every table's head and every key outside of a value, with its line. Invalid TOML is scanned as far as possible."""
    found: list[tuple[Key, int]] = []
    table: Key = ()
    parts: list[str] = []
    line, depth, dots = 1, 0, 0
    is_head = is_value = False
    for match in _TOKEN.finditer(text):
        kind, word = match.lastgroup, match.group()
        if kind == "unclosed":
            break
        if kind == "mark":
            depth += _DEEPER.get(word, 0)
            dots = dots + 1 if word == "." else 0
        if depth > DEEPEST or dots > DEEPEST:
            line, column = _position(text, match.start())
            way_out = f"at most {DEEPEST} levels are read"
            raise SettingsError(f"{path}:{line}:{column}: is nested too deeply", suggestion=way_out)
        if kind == "newline" and (depth <= 0 or not is_value):
            parts, depth, dots, is_head, is_value = [], 0, 0, False, False
        elif kind in ("quoted", "bare") and not is_value:
            parts.append(word[1:-1] if kind == "quoted" else word)
        elif kind == "mark" and not is_value:
            is_head = is_head or (word == "[" and not parts)
            if word in "]=":
                key = tuple(parts) if is_head else (*table, *parts)
                table, is_value = key if is_head else table, True
                found.append((key, line))
        line += word.count("\n")
    return found


def _refusal(written: Written, text: str, statements: list[tuple[Key, int]], message: str) -> SettingsError:
    """Return the parser's error with its position; for a key that is written twice, with its first line."""
    found = _POSITION.search(message)
    if found is None:  # Python's own refusal of a number
        line, column = _position(text, next((match.start() for match in _ENDLESS.finditer(text)), 0))
        return SettingsError(f"{written.path}:{line}:{column}: has a number with too many digits")
    line, column = (int(found[1]), int(found[2])) if found[1] else _position(text, len(text))
    place, what = f"{written.path}:{line}:{column}", message[: found.start()]
    key = next((key for key, at in reversed(statements) if at <= line), ())
    if not what.startswith(_TWICE):
        return SettingsError(f"{place}: is not TOML: {what[0].lower()}{what[1:]}")
    first = written.line(key)
    suggestion = f"it is on line {first} too: keep one" if first != line else "keep one"
    return SettingsError(f"{place}: {'.'.join(key)}: is written twice", suggestion=suggestion)
