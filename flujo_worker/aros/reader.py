"""Read a value from text that is not quite JSON, in one pass, at one of three levels.

It never guesses: each slip can be read in one way at its level, everything in the text becomes part of the value, and ambiguous texts are
rejected. No recursion: depth is bounded by `DEEPEST`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from flujo_worker.aros import grammar
from flujo_worker.aros.decode import same
from flujo_worker.aros.outcome import LIMIT, NOT_JSON, TWO_READINGS, Path, StageRefused
from flujo_worker.aros.scalars import Frame, Scalars

DEEPEST: Final = 256
CLOSER: Final = "closer"
"""Refused for a bracket that closes another: only `last_resorts` and its caller meet this word."""


@dataclass(slots=True)
class Reading:
    """A value, and how it was read."""

    value: Any
    repairs: dict[str, None]
    """The slips that were read over."""
    open: list[tuple[Path, bool]] = field(default_factory=list)
    """The containers that the text's end left open, outermost first: path, and whether it is a list."""


class Reader(Scalars):
    """One reading of one region."""

    def read(self, *, unclosed: bool = False) -> Reading:
        """Read one value, or raise StageRefused; with `unclosed`, close what is open where the text ends, and say so in the reading."""
        try:
            return Reading(self._value(), self._repairs)
        except StageRefused as refused:
            if unclosed and self.between and self.position >= self.stop:
                return self._closed()
            if not refused.path:
                refused.path = self._path()
            raise

    def whole(self, *, unclosed: bool = False) -> Reading:
        """Read one value that nothing follows."""
        reading = self.read(unclosed=unclosed)
        found = self._skip.match(self.text, self.position, self.stop)
        if found is not None and found.end() < self.stop:
            raise StageRefused(CLOSER, f"the value is followed by {self.text[found.end() : found.end() + 12]!r}")
        return reading

    def _closed(self) -> Reading:
        left = [(self._path()[:depth], isinstance(frame.container, list)) for depth, frame in enumerate(self._frames)]
        value = self._leave()
        while self._frames:
            self._attach(value)
            value = self._leave()
        return Reading(value, {**self._repairs, "closing-bracket": None}, left)

    def _path(self) -> Path:
        return tuple(frame.place for frame in self._frames if frame.place is not None)

    def _value(self) -> Any:
        while True:
            value = self._enter()
            while True:
                if not self._frames:
                    return value
                self._attach(value)
                if self._another():
                    break
                value = self._leave()

    def _enter(self) -> Any:
        """Enter containers down to the first scalar, or the first empty one."""
        while True:
            char = self._next()
            closer = self._closers.get(char)
            if closer is None:
                return self._scalar(char)
            if len(self._frames) >= DEEPEST:
                raise StageRefused(LIMIT, f"nested deeper than {DEEPEST}")
            self.position += 1
            self._frames.append(Frame({} if char == "{" else [], closer))
            if self._next() == closer:
                self.position += 1
                return self._leave()
            if char == "{":
                self._key()

    def _leave(self) -> Any:
        frame = self._frames.pop()
        if frame.closer == ")":
            if len(frame.container) == 1 and not frame.commas:
                raise StageRefused(NOT_JSON, "round brackets around one value are not a list")
            self._repairs["tuple"] = None
        return frame.container

    def _attach(self, value: Any) -> None:
        frame = self._frames[-1]
        if isinstance(frame.container, list):
            frame.container.append(value)
            return
        if frame.key in frame.container and not same(frame.container[frame.key], value):
            raise StageRefused(TWO_READINGS, f"the key {frame.key!r} appears twice with different values")
        frame.container[frame.key] = value

    def _another(self) -> bool:
        """Return whether another value follows in a container; False: the container is closed."""
        frame = self._frames[-1]
        self.between = True
        char = self._next()
        if char == frame.closer:
            self.position += 1
            self.between = False
            return False
        if char == ",":
            self.between = False
            self.position += 1
            frame.commas += 1
            self.progress = True
            if self._next() == frame.closer:
                self._repairs["trailing-comma"] = None
                self.position += 1
                return False
        elif char in "}])":
            raise StageRefused(CLOSER, f"expected {frame.closer!r}, found {char!r}")
        elif not self._without_comma(char):
            raise StageRefused(NOT_JSON, f"expected ',' or {frame.closer!r}, found {self._here()}")
        self.between = False
        if isinstance(frame.container, dict):
            self._key()
        return True

    def _without_comma(self, char: str) -> bool:
        if self.level < grammar.REPAIR:
            return False
        if self._frames[-1].closer == "}":
            follows = char in self._quotes or grammar.KEY[2].match(self.text, self.position, self.stop) is not None
        else:
            number = grammar.NUMBER[2].match(self.text, self.position, self.stop)
            follows = char in self._quotes or char in self._closers or number is not None
        if follows:
            self._repairs["missing-comma"] = None
        return follows

    def _key(self) -> None:
        char = self._next()
        frame = self._frames[-1]
        if char in self._quotes:
            frame.key = self._string(char, "key")
        else:
            frame.key = self._bare_key()
        if self._next() != ":":
            raise StageRefused(NOT_JSON, f"expected ':' after the key {frame.key!r}, found {self._here()}")
        self.position += 1
        self.progress = True

    def _bare_key(self) -> str:
        pattern = grammar.KEY[self.level]
        found = pattern.match(self.text, self.position, self.stop) if pattern else None
        if found is None:
            raise StageRefused(NOT_JSON, f"expected a key in double quotes, found {self._here()}")
        self.position = found.end()
        self._repairs["unquoted-key"] = None
        return found.group()
