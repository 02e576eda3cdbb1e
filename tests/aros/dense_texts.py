"""Texts of any size that are dense with what AROS searches for, by class: what `hard_cases.py` has at one size, and worse.

Each is followed by an answer, or by none. In: a class and a size; out: the text.
"""

from collections.abc import Iterator
from itertools import count

from hard_cases import ANSWER

REPEATED = {
    "words": "word ",
    "quotes": '"',
    "closers": "]} ",
    "openers in prose": "if [ x { y ",
    "brackets in prose": "a [ b ] c ",
    "citations": "[1] ",
    "empty objects": "{} ",
    "placeholders": "{name} ",
    "other objects": '{"z": 1} ',
    "objects of the wrong types": '{"a": "x", "b": "x"} ',
    "equal answers": ANSWER + " ",
    "lists nested six deep": "[[[[[[1]]]]]] ",
    "brackets of both kinds nested in prose": "a [ b { c [ d { e } f ] g } h ] ",
    "apostrophes among openers": "it's [ x ",
}
NUMBERED = {
    "different citations": "[{}] ",
    "different other objects": '{{"z": {}}} ',
    "different objects of the wrong types": '{{"a": "{}x", "b": "x"}} ',
    "different answers": '{{"a": {}, "b": "x"}} ',
    "different lists nested six deep": "[[[[[[{}]]]]]] ",
    "different lists of texts nested six deep": '[[[[[["{}"]]]]]] ',
    "different objects in single quotes": "{{'z': {}}} ",
}
BEHIND_OPENERS = "citations behind openers"
BEHIND_THINKING = "citations behind thinking"
NESTED = "brackets nested in prose"
DENSE = [*REPEATED, *NUMBERED, BEHIND_OPENERS, BEHIND_THINKING, NESTED]


def dense(name: str, characters: int) -> str:
    """Return so many characters of a class, or some more."""
    if name == NESTED:
        return "[ a " * (characters // 7) + "b ]" * (characters // 7)
    if name == BEHIND_OPENERS:
        return "a [ b { " * 20 + "[1] " * (characters // 4)
    if name == BEHIND_THINKING:
        return "<think>x</think>" + "[1] " * (characters // 4)
    if name in REPEATED:
        return REPEATED[name] * (characters // len(REPEATED[name]))
    return "".join(_so_many(NUMBERED[name], characters))


def _so_many(pattern: str, characters: int) -> Iterator[str]:
    written = 0
    for number in count():
        part = pattern.format(number)
        written += len(part)
        yield part
        if written >= characters:
            return
