"""The words of expressions, each with its place in the text. Pure.

Names are ASCII, so that no letter can pass for another. One pass, and no more than `MAX_LENGTH` characters of it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from flujo_client.errors import BlueprintTextError

MAX_LENGTH = 4_000
"""Characters in an expression, and in a tag of a template."""

_SHOWN = 40
_TOKEN = re.compile(
    r"""(?P<blank>[\ \t\r\n]+)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<number>(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
    |(?P<text>'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")
    |(?P<sign>==|!=|<=|>=|//|\*(?!\*)|[-+/%<>.,()\[\]]|\|(?!\|))""",
    re.VERBOSE,
)
_FOREIGN = re.compile(r"&&|\|\||\*\*|:=|[&^~!=?:;{}@#$`\\]|'|\"|.", re.DOTALL)
_WAYS_OUT = {
    "**": "powers are not supported: multiply, or do this in a step",
    "~": "write + to join two texts; in a template, write the tags one after the other",
    ":": "slices and mappings are not supported: do this in a step",
    "?": "write `a and b or c`, or #if in a template",
    "=": "write == to compare",
    "&&": "write and",
    "||": "write or",
    "!": "write not",
    "'": "close the text with '",
    '"': 'close the text with "',
    "{": "mappings cannot be written here; a list is [1, 2]",
    "}": "end the tag with }}",
}
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


class Token(NamedTuple):
    """`kind` is name, number, text, sign or end; `at` and `end` are its place in the whole text."""

    kind: str
    text: str
    at: int
    end: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else shown(self.text)


def shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def line_and_column(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def refused(text: str, offset: int, what: str, way_out: str | None = None) -> BlueprintTextError:
    line, column = line_and_column(text, offset)
    message = f"line {line}, column {column}: {what}"
    return BlueprintTextError(message, suggestion=way_out, offset=offset, line=line, column=column)


def tokens(text: str, start: int = 0, *, closed_by: str | None = None) -> list[Token]:
    """Cut a text into words from `start` to its end, or to what closes it, which is then the last one. Raises BlueprintTextError."""
    found: list[Token] = []
    at = start
    while at - start <= MAX_LENGTH:
        if closed_by and text.startswith(closed_by, at):
            return [*found, Token("end", "", at, at + len(closed_by))]
        if at == len(text):
            if closed_by:
                way_out = "for the braces themselves write {{ '{{' }}"
                raise refused(text, start, f"this is not closed by {closed_by}", way_out)
            return [*found, Token("end", "", at, at)]
        match = _TOKEN.match(text, at, at + MAX_LENGTH)
        if match is None:
            raise _foreign(text, at)
        if match.lastgroup != "blank":
            found.append(Token(match.lastgroup or "", match.group(), at, match.end()))
        at = match.end()
    raise refused(text, start, f"longer than {MAX_LENGTH} characters", "do this in a step")


def _foreign(text: str, at: int) -> BlueprintTextError:
    match = _FOREIGN.match(text, at)
    sign = match.group() if match else ""
    if sign in {"'", '"'}:
        what = f"this text does not end on its line, or has more than {MAX_LENGTH} characters"
        return refused(text, at, what, _WAYS_OUT[sign])
    what = f"{sign!r} is not allowed here" if sign.isascii() else f"{sign!r} (U+{ord(sign):04X}) is not allowed here"
    other = "names are made of a-z, A-Z, 0-9 and _; read any other as ['…']" if sign.isalpha() else None
    return refused(text, at, what, _WAYS_OUT.get(sign, other))


def text_of(text: str, token: Token) -> str:
    """Return the text of a token in quotes."""

    def escaped(match: re.Match[str]) -> str:
        if match[1] not in _ESCAPED:
            at = token.at + 1 + match.start()
            raise refused(text, at, f"unknown escape {shown(match[0])}", r"known: \n \t \r \\ \' " + r"\"")
        return _ESCAPED[match[1]]

    return _ESCAPE.sub(escaped, token.text[1:-1])
