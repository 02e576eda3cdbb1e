"""Reads one scalar of a text that is not quite JSON: a string, a number, a word, or a value without quotes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from flujo_client.contract.processing import MAX_STEPS, ProcessingSettings
from flujo_worker.aros import grammar, strings
from flujo_worker.aros.decode import LONGEST_NUMBER, finite
from flujo_worker.aros.outcome import CUT, LIMIT, LOSSY, NOT_JSON, TWO_READINGS, Path, StageRefused

Clock = Callable[[], float]

FITS: Final = 100_000
MAX_CHECKS: Final = 10_000
CHECKS_PER_CHARACTER: Final = 8
LEAST_S: Final = 0.25
"""Processor time that any text may be searched for."""
_LOOKS: Final = 256
"""Steps after which the clock is read."""
_A_STEP: Final = 16
"""Characters of a value without quotes, or escapes of a string, that cost one step: the same text may be read again from many places."""
_GLANCE: Final = 256
"""Characters that are looked at where no value without quotes is read."""
_ROLES: Final = {"}": "member", "]": "element", ")": "in-tuple"}
INNER_QUOTES: Final = "inner-quotes"
"""The repair of a string with quotes inside."""


@dataclass(slots=True)
class ParseBudget:
    """The bounds of one text, over all tries."""

    left: int = MAX_STEPS
    """Tokens that may still be read."""
    fits: int = FITS
    """Steps of fitting values to the schema."""
    checks: int = MAX_CHECKS
    """Parts of values that are checked against branches of unions; a value is checked again at each depth."""
    asks: int = MAX_CHECKS
    """Parts of values that the type is asked about."""
    clock: Clock | None = None
    """Returns seconds of processor time; None: the search is bounded in steps only."""
    ends_at: float = 0.0
    per_mb: float = 0.0
    words: frozenset[str] = frozenset()
    """Texts that the schema lists; without quotes too they are text."""

    @classmethod
    def of(cls, text: str, settings: ProcessingSettings, clock: Clock | None, words: frozenset[str]) -> ParseBudget:
        """Make the budget of a text: asking, and searching, may cost more for a longer one."""
        checks = MAX_CHECKS + CHECKS_PER_CHARACTER * len(text)
        budget = cls(left=settings.max_steps, checks=checks, asks=checks, words=words)
        if clock is not None:
            budget.clock, budget.per_mb = clock, settings.max_ms_per_mb
            budget.ends_at = clock() + LEAST_S + settings.max_ms_per_mb * len(text) / 1e9
        return budget

    def spend(self, steps: int = 1) -> None:
        self.left -= steps
        if self.left < 0:
            raise StageRefused(LIMIT, "the text is too long to repair: more steps than coercion.max_steps")

    def search(self, steps: int = 1) -> None:
        """Pay for steps of the search, which is bounded in time too."""
        before = self.left
        self.spend(steps)
        if self.clock is not None and before // _LOOKS != self.left // _LOOKS and self.clock() > self.ends_at:
            message = f"the search took more than {self.per_mb:g} ms for each megabyte (coercion.max_ms_per_mb)"
            raise StageRefused(LIMIT, message, stage="extract")

    def fit(self, path: Path, steps: int = 1) -> None:
        self.fits -= steps
        if self.fits < 0:
            raise StageRefused(LIMIT, "too many ways to fit the value to the schema", path, "semantic")

    def charge_checks(self, path: Path, parts: int) -> None:
        self.checks -= parts
        if self.checks < 0:
            raise StageRefused(LIMIT, "unions are nested too deeply to check every branch", path, "semantic")


@dataclass(slots=True)
class Frame:
    """One open container."""

    container: Any
    closer: str
    key: str | None = None
    commas: int = 0

    @property
    def place(self) -> str | int | None:
        """Return the index or key of what is read now; None before the first key."""
        return len(self.container) if isinstance(self.container, list) else self.key


class Scalars:
    """A place in a text, and what can be read there.

    Attributes:
        progress: whether it met what prose does not have: a key with its colon, or a comma after an element.
        between: whether it stopped after a whole value inside a container.
    """

    def __init__(self, text: str, start: int, stop: int, level: int, budget: ParseBudget) -> None:
        self.text, self.position, self.stop, self.level, self.budget = text, start, stop, level, budget
        self.progress = self.between = False
        self._final = stop == len(text)
        self._frames: list[Frame] = []
        self._repairs: dict[str, None] = {}
        self._odd = 0
        self._skip = grammar.SKIP[level]
        self._closers = grammar.CLOSERS[level]
        self._quotes = grammar.QUOTES[level]

    def _next(self) -> str:
        self.budget.spend()
        found = self._skip.match(self.text, self.position, self.stop)
        assert found is not None
        if (gap := found.group()) and not gap.isspace() and grammar.ELISION.search(gap):
            raise StageRefused(LOSSY, "a comment says that something was left out")
        self.position = found.end()
        if self.position >= self.stop or (self.level and self.text.startswith("/*", self.position)):
            raise StageRefused(CUT, "the text ends before the value does")
        return self.text[self.position]

    def _scalar(self, char: str) -> Any:
        if char in self._quotes:
            return self._string(char, _ROLES[self._frames[-1].closer] if self._frames else "element")
        number = grammar.NUMBER[self.level].match(self.text, self.position, self.stop)
        if number is not None:
            return self._number(number.group(), number.end())
        word = grammar.WORD.match(self.text, self.position, self.stop)
        if word is not None and word.group() in grammar.WORDS and self._ends_there(word.end()):
            return self._word(word.group())
        return self._loose()

    def _number(self, digits: str, end: int) -> int | float:
        if end >= self.stop and self._final and self._frames:
            raise StageRefused(CUT, "the text ends inside a number")
        self.position = end
        if grammar.STRICT_NUMBER.fullmatch(digits) is None:
            self._repairs["json5-number"] = None
        if len(digits) > LONGEST_NUMBER:
            raise StageRefused(LIMIT, f"a number of {len(digits)} digits")
        if digits.lstrip("+-")[:2] in {"0x", "0X"}:
            return int(digits, 16)
        if grammar.WHOLE.fullmatch(digits):
            return int(digits)
        try:
            return finite(digits)
        except ValueError:
            raise StageRefused(LIMIT, "a number too large for JSON") from None

    def _ends_there(self, end: int) -> bool:
        """At level 2 a word may be the first of several that make a value without quotes."""
        if self.level < grammar.REPAIR or not self._frames:
            return True
        return self.position + len(self._without_quotes(self.stop)) <= end

    def _word(self, word: str) -> Any:
        self.position += len(word)
        if word[0].isupper():
            self._repairs["python-literal"] = None
        return grammar.WORDS[word]

    def _loose(self) -> str:
        stop = self.stop if self._frames else min(self.stop, self.position + _GLANCE)
        text = self._without_quotes(stop).rstrip()
        if self._final and self._frames and self.position + len(text) >= self.stop:
            raise StageRefused(CUT, "the text ends inside a value")
        is_no_text = text and text not in self.budget.words and grammar.NO_TEXT.fullmatch(text)
        if is_no_text or text.startswith("...") or self._here().startswith("'…"):
            raise StageRefused(LOSSY, f"expected a value, found {text or '…'}")
        is_call = self.text[self.position + len(text) : self.position + len(text) + 1] in {"(", '"', "'", "`"}
        if self.level < grammar.REPAIR or not self._frames or not text or is_call:
            raise StageRefused(NOT_JSON, f"expected a value, found {self._here()}")
        if "..." in text or (self._frames[-1].closer != "}" and " " in text):
            raise StageRefused(TWO_READINGS, f"{text!r} without quotes can be read in more than one way")
        self.position += len(text)
        self._repairs["unquoted-value"] = None
        return text

    def _without_quotes(self, stop: int) -> str:
        """Return what could be a value without quotes here."""
        found = grammar.LOOSE.match(self.text, self.position, stop)
        text = found.group() if found else ""
        self.budget.spend(len(text) // _A_STEP)
        return text

    def _string(self, quote: str, role: str) -> str:
        if self.level == grammar.REPAIR and self.text.startswith(grammar.TRIPLE, self.position):
            return self._triple()
        lenient = self.level == grammar.REPAIR and bool(self._frames)
        start = self.position + 1
        end = self._end_of(quote, role) if lenient else self._closing(quote, None)[0]
        body = self.text[start:end]
        if grammar.CONTROL.search(body):
            self._repairs["control-character"] = None
        self.budget.spend(body.count("\\") // _A_STEP)
        spoken = strings.unescape(body, self.level)
        self.position = end + 1
        return spoken

    def _closing(self, quote: str, role: str | None) -> tuple[int, int]:
        if quote != '"':
            self._repairs["single-quotes" if quote == "'" else "typographic-quotes"] = None
        return strings.closing(self.text, self.position + 1, self.stop, self._quotes[quote], role)

    def _end_of(self, quote: str, role: str) -> int:
        """Find where a string ends that may contain quotes, if that is unambiguous."""
        try:
            end, inside = self._closing(quote, role)
            self._note(quote, inside, role, end)
        except StageRefused:
            self.budget.spend(self.text.count(quote, self.position, self.stop))
            mixed = strings.closing_mixed(self.text, self.position + 1, self.stop, role) if quote == '"' else None
            if mixed is None:
                raise
            self._repairs["typographic-quotes"] = None
            return mixed
        return end

    def _is_alone(self, end: int) -> bool:
        """Return whether it is the only element of its list, without a neighbour that a stray quote could belong to."""
        neighbours = bool(self._frames[-1].container) or grammar.QUOTE_COMMA.search(self.text, self.position, end)
        return not neighbours and self.text[end + 1 : end + 64].lstrip()[:1] == "]"

    def _note(self, quote: str, inside: int, role: str, end: int) -> None:
        if not inside:
            return
        self.budget.spend(inside)
        if grammar.SUM.search(self.text, self.position, end) or grammar.MEMBER.search(self.text, self.position, end):
            raise StageRefused(NOT_JSON, "expected one string, found several")
        torn = strings.is_torn(self.text[self.position + 1 : end], self._quotes[quote], role)
        self._repairs[INNER_QUOTES] = None
        inside -= min(inside, self.text.count("„", self.position, end))  # „so" is how some languages quote
        self._odd += inside % 2
        alone = role == "element" and bool(self._frames) and self._is_alone(end)
        if torn or (inside % 2 and ((role != "member" and not alone) or self._odd > 1)):
            raise StageRefused(TWO_READINGS, "quotes inside a string can be read in more than one way; escape them")

    def _triple(self) -> str:
        mark = self.text[self.position : self.position + 3]
        end = self.text.find(mark, self.position + 3, self.stop)
        if end < 0:
            raise StageRefused(CUT, "the text ends inside a string")
        self._repairs["triple-quotes"] = None
        body = self.text[self.position + 3 : end]
        self.position = end + 3
        return strings.unescape(body, self.level)

    def _here(self) -> str:
        return repr(self.text[self.position : min(self.position + 12, self.stop)])
