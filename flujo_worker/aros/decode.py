"""Decode strict JSON: exactly, or not at all.

It must not accept more than RFC 8259: no NaN, no infinity (an overflowing number is one), no lone surrogates, no integer that loses digits,
no nesting deeper than the checker supports. The result does not depend on which decoders are installed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, Final, NoReturn

try:
    import orjson
except ImportError:  # pragma: no cover - the fallback is tested by hiding the module
    orjson = None  # type: ignore[assignment]
try:
    import msgspec
except ImportError:
    msgspec = None  # type: ignore[assignment]

DEEPEST: Final = 1000
"""The checker recurses in native code; beyond twice this it takes the process down."""
LONGEST_NUMBER: Final = 4300
"""Digits: Python's own limit for reading an integer."""

ERRORS: Final[tuple[type[Exception], ...]] = (ValueError, RecursionError, *([msgspec.MsgspecError] if msgspec else ()))
"""What `decode` raises for text that is not strict JSON."""

_SHORT: Final = 2 * DEEPEST
"""Text this short cannot be nested too deep."""
_RUN: Final = b"0" * 19
_LONG: Final = re.compile(r"-?\d{19}", re.ASCII)
_DIGITS_AS_ZEROS: Final = bytes(48 if 48 <= code <= 57 else code for code in range(256))  # noqa: PLR2004 - the codes of 0 and 9
_quick: Final[Callable[[str], Any] | None] = msgspec.json.Decoder().decode if msgspec else None


def decode(text: str) -> Any:
    """Decode strict JSON; raises one of `ERRORS` for anything else, and beyond the limits."""
    if _quick is not None and len(text) < _SHORT:
        return _quick(text)
    return exact(text) if orjson is None else _guarded(text)


def decoded(text: str) -> tuple[Any, ...]:
    """Return the value of strict JSON as a tuple of one; of other text, an empty one."""
    try:
        return (decode(text),)
    except ERRORS:
        return ()


def _guarded(text: str) -> Any:
    """Decode with orjson, which reads an integer past 64 bits as a float; a table and a search for nineteen digits are the cheapest guard."""
    data = text.encode()
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as wrong:
        if _LONG.match(text, wrong.pos):  # an integer past what a float holds
            return exact(text)
        raise
    return exact(text) if _RUN in data.translate(_DIGITS_AS_ZEROS) else value


def exact(text: str) -> Any:
    """Decode as `decode` does with only the standard library: slower, integers of any size."""
    value = json.loads(text, parse_constant=_refuse, parse_float=finite)
    layer, depth = [value], 0
    while layer:
        if depth == DEEPEST:
            raise ValueError("nested too deep")
        layer = [child for parent in layer for child in _children(parent)]
        depth += 1
    json.dumps(value, ensure_ascii=False).encode()  # raises for lone surrogates
    return value


def finite(digits: str) -> float:
    """Read a JSON number with a fraction or an exponent; raises ValueError when it is too large for a float."""
    number = float(digits)
    if math.isinf(number):
        raise ValueError("number out of range")
    return number


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def same(one: Any, other: Any) -> bool:
    """Return whether two decoded values are the same JSON: unlike with `==`, 1 and true differ."""
    return one is other or canonical(one) == canonical(other)


def canonical(value: Any) -> str:
    """Write a value so that two are the same JSON exactly if they are written alike."""
    return json.dumps(value, sort_keys=True)
