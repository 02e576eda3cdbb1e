"""Mutations of bytes: pure but for the random numbers it is given."""

from collections.abc import Callable, Sequence
from random import Random

MOST_BYTES = 16_384
"""How long a mutated input may be; the bounds of time hold for this length."""
MOST_CHANGES = 6
ODD = [
    *(b"", b"\x00", b"\xff", b"\xed\xa0\x80", "\u2028é\U0001d518".encode(), b"\r\n", b"\t", b" " * 64, b"(" * 300, b"[" * 300, b"{" * 300),
    *(b"null", b"true", b"-0", b"1e999", b"9" * 400, b"NaN", b"-1", b"0.1", b'"', b"'", b"\\", b"\\u0000", b"\\ud800", b"${x}", b"%s"),
]  # fmt: skip


def mutated(data: bytes, others: Sequence[bytes], words: Sequence[bytes], draw: Random) -> bytes:
    """Change some bytes a few times.

    Args:
        data: what to change.
        others: further inputs, of which pieces are taken.
        words: what the language under test is made of.
        draw: decides everything.
    """
    for _ in range(draw.randint(1, MOST_CHANGES)):
        at, end = sorted((draw.randint(0, len(data)), draw.randint(0, len(data))))
        end = min(end, at + draw.choice((1, 4, 16, 4096)))
        data = draw.choice(CHANGES)(data, at, end, others, words, draw)
    return data[:MOST_BYTES]


def _flip(data: bytes, at: int, _end: int, *rest: object) -> bytes:
    draw: Random = rest[-1]  # type: ignore[assignment]
    changed = bytearray(data or b" ")
    changed[min(at, len(changed) - 1)] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _drop(data: bytes, at: int, end: int, *_: object) -> bytes:
    return data[:at] + data[end:]


def _repeat(data: bytes, at: int, end: int, *rest: object) -> bytes:
    draw: Random = rest[-1]  # type: ignore[assignment]
    return data[:at] + data[at:end] * draw.choice((2, 3, 50, 1000)) + data[end:]


def _insert(data: bytes, at: int, _end: int, _others: Sequence[bytes], words: Sequence[bytes], draw: Random) -> bytes:
    return data[:at] + draw.choice(words) + data[at:]


def _replace(data: bytes, at: int, end: int, _others: Sequence[bytes], words: Sequence[bytes], draw: Random) -> bytes:
    return data[:at] + draw.choice(words) + data[end:]


def _splice(data: bytes, at: int, end: int, others: Sequence[bytes], _words: Sequence[bytes], draw: Random) -> bytes:
    other = draw.choice(others)
    start = draw.randint(0, len(other))
    return data[:at] + other[start : start + draw.choice((8, 64, 4096))] + data[end:]


CHANGES: list[Callable[..., bytes]] = [_flip, _drop, _repeat, _insert, _insert, _replace, _replace, _splice]
