"""Reads a value from text that is not quite JSON, in one pass, at one of three levels.

It never guesses: each slip has one way to be read at its level, everything in the text lands in the value, and what is ambiguous is
refused (rules 6 to 10). No recursion: depth is bounded by `DEEPEST`, work by the `Budget`. In: text and the bounds of the region;
out: a `Reading`, or `Refused` with the rule and the path. What a text's end leaves open is reported, never closed in silence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from flujo_worker.aros import grammar, strings
from flujo_worker.aros.decode import LONGEST_NUMBER, finite, same
from flujo_worker.aros.outcome import CUT, LIMIT, LOSSY, NOT_JSON, TWO_READINGS, Path, Refused

DEEPEST: Final = 256
CLOSER: Final = "closer"
"""Refused for a bracket that closes another: only `brackets` meets this word."""
STEPS: Final = 250_000




@dataclass(slots=True)
class Budget:
    """How many tokens one text may cost, over all tries."""

    left: int = STEPS

    def spend(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise Refused(LIMIT, "the text is too long to repair")


@dataclass(slots=True)
class Reading:
    """A value and how it was come by.

    Attributes:
        value: the decoded value.
        end: where the value ends in the text.
        repairs: the slips that were read over.
        open: the containers that the text's end left open, outermost first: path, and whether it is a list.
    """

    value: Any
    end: int
    repairs: dict[str, None]
    open: list[tuple[Path, bool]] = field(default_factory=list)


@dataclass(slots=True)
class _Frame:
    container: Any
    closer: str
    key: str = ""
    commas: int = 0

    @property
    def place(self) -> str | int:
        return len(self.container) if isinstance(self.container, list) else self.key


class Reader:
    """One reading of one region.

    Attributes:
        position: how far it came.
        progress: whether it met what prose does not have: a key with its colon, or a comma after an element.
        between: whether it stopped after a whole value inside a container.
    """

    def __init__(self, text: str, start: int, stop: int, level: int, budget: Budget) -> None:
        self.text, self.position, self.stop, self.level, self.budget = text, start, stop, level, budget
        self.progress = self.between = False
        self._final = stop == len(text)
        self._frames: list[_Frame] = []
        self._repairs: dict[str, None] = {}
        self._odd = 0
        self._skip = grammar.SKIP[level]
        self._closers = grammar.CLOSERS[level]
        self._quotes = grammar.QUOTES[level]

    def read(self, *, unclosed: bool = False) -> Reading:
        """Read one value.

        Args:
            unclosed: close what is open where the text ends after a whole value, and say so in the reading.

        Raises:
            Refused: with the rule and the path.
        """
        try:
            return Reading(self._value(), self.position, self._repairs)
        except Refused as refused:
            if unclosed and self.between and self.position >= self.stop:
                return self._closed()
            if not refused.path:
                refused.path = self._path()
            raise

    def end(self) -> None:
        """See that nothing follows the value.

        Raises:
            Refused: when something does.
        """
        found = self._skip.match(self.text, self.position, self.stop)
        if found is not None and found.end() < self.stop:
            raise Refused(CLOSER, f"the value is followed by {self.text[found.end() : found.end() + 12]!r}")

    def _closed(self) -> Reading:
        left = [
            (tuple(frame.place for frame in self._frames[:depth]), isinstance(frame.container, list))
            for depth, frame in enumerate(self._frames)
        ]
        value = self._leave()
        while self._frames:
            self._attach(value)
            value = self._leave()
        return Reading(value, self.position, {**self._repairs, "closing-bracket": None}, left)

    def _path(self) -> Path:
        return tuple(frame.place for frame in self._frames)

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
        """Go into containers up to the first scalar, or the first empty one."""
        while True:
            char = self._next()
            closer = self._closers.get(char)
            if closer is None:
                return self._scalar(char)
            if len(self._frames) >= DEEPEST:
                raise Refused(LIMIT, f"nested deeper than {DEEPEST}")
            self.position += 1
            self._frames.append(_Frame({} if char == "{" else [], closer))
            if self._next() == closer:
                self.position += 1
                return self._leave()
            if char == "{":
                self._key()

    def _next(self) -> str:
        self.budget.spend()
        found = self._skip.match(self.text, self.position, self.stop)
        assert found is not None
        self.position = found.end()
        if self.position >= self.stop or (self.level and self.text.startswith("/*", self.position)):
            raise Refused(CUT, "the text ends before the value does")
        return self.text[self.position]

    def _leave(self) -> Any:
        frame = self._frames.pop()
        if frame.closer == ")":
            if len(frame.container) == 1 and not frame.commas:
                raise Refused(NOT_JSON, "round brackets around one value are not a list")
            self._repairs["tuple"] = None
        return frame.container

    def _attach(self, value: Any) -> None:
        frame = self._frames[-1]
        if isinstance(frame.container, list):
            frame.container.append(value)
            return
        if frame.key in frame.container and not same(frame.container[frame.key], value):
            raise Refused(TWO_READINGS, f"the key {frame.key!r} stands twice with different values")
        frame.container[frame.key] = value

    def _another(self) -> bool:
        """After a value in a container: whether another follows, or the container is closed."""
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
            raise Refused(CLOSER, f"expected {frame.closer!r}, found {char!r}")
        elif not self._without_comma(char):
            raise Refused(NOT_JSON, f"expected ',' or {frame.closer!r}, found {self._here()}")
        self.between = False
        if isinstance(frame.container, dict):
            self._key()
        return True

    def _without_comma(self, char: str) -> bool:
        if self.level < 2:  # noqa: PLR2004 - the level that reads over missing commas
            return False
        if self._frames[-1].closer == "}":
            follows = char in self._quotes or grammar.KEY[2].match(self.text, self.position, self.stop) is not None  # type: ignore[union-attr]
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
            raise Refused(NOT_JSON, f"expected ':' after the key {frame.key!r}, found {self._here()}")
        self.position += 1
        self.progress = True

    def _bare_key(self) -> str:
        pattern = grammar.KEY[self.level]
        found = pattern.match(self.text, self.position, self.stop) if pattern else None
        if found is None:
            raise Refused(NOT_JSON, f"expected a key in double quotes, found {self._here()}")
        self.position = found.end()
        self._repairs["unquoted-key"] = None
        return found.group()

    def _scalar(self, char: str) -> Any:
        if char in self._quotes:
            in_object = bool(self._frames) and self._frames[-1].closer == "}"
            return self._string(char, "member" if in_object else "element")
        number = grammar.NUMBER[self.level].match(self.text, self.position, self.stop)
        if number is not None:
            return self._number(number.group(), number.end())
        word = grammar.WORD.match(self.text, self.position, self.stop)
        if word is not None and word.group() in grammar.WORDS and self._ends_there(word.end()):
            return self._word(word.group())
        return self._loose()

    def _number(self, digits: str, end: int) -> int | float:
        if end >= self.stop and self._final and self._frames:
            raise Refused(CUT, "the text ends inside a number")
        self.position = end
        if grammar.STRICT_NUMBER.fullmatch(digits) is None:
            self._repairs["json5-number"] = None
        if len(digits) > LONGEST_NUMBER:
            raise Refused(LIMIT, f"a number of {len(digits)} digits")
        if digits.lstrip("+-")[:2] in {"0x", "0X"}:
            return int(digits, 16)
        if grammar.WHOLE.fullmatch(digits):
            return int(digits)
        try:
            return finite(digits)
        except ValueError:
            raise Refused(LIMIT, "a number too large for JSON") from None

    def _ends_there(self, end: int) -> bool:
        """At level 2 a word may be the first of several that make a value without quotes."""
        if self.level < 2 or not self._frames:  # noqa: PLR2004
            return True
        loose = grammar.LOOSE.match(self.text, self.position, self.stop)
        return loose is None or loose.end() <= end

    def _word(self, word: str) -> Any:
        self.position += len(word)
        if word[0].isupper():
            self._repairs["python-literal"] = None
        return grammar.WORDS[word]

    def _loose(self) -> str:
        found = grammar.LOOSE.match(self.text, self.position, self.stop)
        text = found.group().rstrip() if found else ""
        if self._final and self._frames and self.position + len(text) >= self.stop:
            raise Refused(CUT, "the text ends inside a value")
        if text.lstrip("+-") in grammar.NO_VALUE or text.startswith("...") or self._here().startswith("'…"):
            raise Refused(LOSSY, f"{text or '…'} stands where a value is needed")
        if self.level < 2 or not self._frames or not any(map(str.isalnum, text)):  # noqa: PLR2004
            raise Refused(NOT_JSON, f"expected a value, found {self._here()}")
        if "..." in text or (self._frames[-1].closer != "}" and " " in text):
            raise Refused(TWO_READINGS, f"{text!r} without quotes can be read in more than one way")
        self.position += len(text)
        self._repairs["unquoted-value"] = None
        return text

    def _string(self, quote: str, role: str) -> str:
        if self.level == 2 and self.text.startswith(grammar.TRIPLE, self.position):  # noqa: PLR2004
            return self._triple()
        lenient = self.level == 2  # noqa: PLR2004
        start = self.position + 1
        end, inside = strings.closing(self.text, start, self.stop, self._quotes[quote], role if lenient else None)
        self._note(quote, inside, role, end)
        body = self.text[start:end]
        if grammar.CONTROL.search(body):
            self._repairs["control-character"] = None
        spoken = strings.said(body, self.level)
        self.position = end + 1
        return spoken

    def _is_alone(self, end: int) -> bool:
        """The only element of its list: there is no neighbour that a stray quote could belong to."""
        neighbours = bool(self._frames[-1].container) or grammar.QUOTE_COMMA.search(self.text, self.position, end)
        return not neighbours and self.text[end + 1 : end + 64].lstrip()[:1] == "]"

    def _note(self, quote: str, inside: int, role: str, end: int) -> None:
        if quote != '"':
            self._repairs["single-quotes" if quote == "'" else "typographic-quotes"] = None
        if not inside:
            return
        if grammar.SUM.search(self.text, self.position, end):
            raise Refused(NOT_JSON, "expected one string, found several put together")
        self._repairs["inner-quotes"] = None
        inside -= min(inside, self.text.count("„", self.position, end))  # „so" is how some languages quote
        self._odd += inside % 2
        alone = role == "element" and bool(self._frames) and self._is_alone(end)
        if inside % 2 and ((role != "member" and not alone) or self._odd > 1):
            raise Refused(TWO_READINGS, "quotes inside a string can be read in more than one way; escape them")

    def _triple(self) -> str:
        mark = self.text[self.position : self.position + 3]
        end = self.text.find(mark, self.position + 3, self.stop)
        if end < 0:
            raise Refused(CUT, "the text ends inside a string")
        self._repairs["triple-quotes"] = None
        body = self.text[self.position + 3 : end]
        self.position = end + 3
        return strings.said(body, self.level)

    def _here(self) -> str:
        return repr(self.text[self.position : min(self.position + 12, self.stop)])
