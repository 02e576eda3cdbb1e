"""The part of a step's `processing` block that the parser obeys, checked once (M-140 to M-144, M-148).

It must not read files or the environment: the block arrives as data. In: a mapping with the seed's keys; out: a frozen
`ProcessingSettings`, or a `SettingsError` that names the key and what to write instead.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from flujo_client.errors import SettingsError

MODES: Final = ("off", "minimal", "full")
LEVELS: Final = (0, 1, 2)
STRATEGIES: Final = ("first-pass",)
CONVERSIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "integer": ("str->int",),
        "number": ("str->float", "str->int"),
        "boolean": ("str->bool",),
        "array": ("str->array", "T->[T]"),
        "object": ("str->object",),
    }
)
"""What `coercion.allow` may list for each type that a schema asks for."""

_OTHERS = ("structured_output", "reasoning_precheck", "schema", "enforce_grammar", "shadow", "typed_fast_path")
_TOP = ("aop", "coercion", *_OTHERS)
_COERCION = ("tolerant_level", "allow", "max_unescape_depth", "anyof_strategy")


@dataclass(frozen=True, slots=True)
class ProcessingSettings:
    """How far the parser may go.

    Attributes:
        aop: `off`, `minimal` or `full`.
        tolerant_level: 0 strict, 1 JSON5, 2 repair; heeded only when `aop` is `full`.
        allow: the conversions allowed for each type; none by default (C-06).
        max_unescape_depth: how many layers of encoding are undone.
        anyof_strategy: `first-pass`, the only one defined.

    Raises:
        SettingsError: for a value outside these, naming the key.
    """

    aop: str = "minimal"
    tolerant_level: int = 0
    allow: Mapping[str, Iterable[str]] = field(default_factory=dict, hash=False)
    max_unescape_depth: int = 2
    anyof_strategy: str = "first-pass"

    def __post_init__(self) -> None:
        _one_of("aop", self.aop, MODES)
        _one_of("coercion.tolerant_level", self.tolerant_level, LEVELS)
        _one_of("coercion.anyof_strategy", self.anyof_strategy, STRATEGIES)
        depth = self.max_unescape_depth
        if not isinstance(depth, int) or isinstance(depth, bool) or depth < 0:
            raise SettingsError(
                f"processing.coercion.max_unescape_depth: {depth!r} is not a depth",
                suggestion="write 0 or more, such as 2",
            )
        object.__setattr__(self, "allow", MappingProxyType(_allowed(self.allow)))

    @classmethod
    def read(cls, block: ProcessingSettings | Mapping[str, Any]) -> ProcessingSettings:
        """Take the parser's keys out of a `processing` block; the other keys of the block are left to their readers.

        Raises:
            SettingsError: for an unknown key (with the nearest one) or a value that is not allowed.
        """
        if isinstance(block, ProcessingSettings):
            return block
        _known("processing", block, _TOP)
        coercion = block.get("coercion") or {}
        _known("processing.coercion", coercion, _COERCION)
        given = {**({"aop": block["aop"]} if "aop" in block else {}), **coercion}
        return cls(**{key: value for key, value in given.items() if value is not None})

    @property
    def full(self) -> bool:
        """Whether tiers, unions and list conversions are on (M-102)."""
        return self.aop == "full"

    @property
    def level(self) -> int:
        """The tolerant level that counts: none outside `full` (C-06)."""
        return self.tolerant_level if self.full else 0

    def permits(self, kind: str, conversion: str) -> bool:
        return conversion in self.allow.get(kind, ())


def _one_of(key: str, value: object, allowed: tuple[str, ...] | tuple[int, ...]) -> None:
    if isinstance(value, bool) or value not in allowed:
        listed = ", ".join(map(repr, allowed))
        raise SettingsError(
            f"processing.{key}: {value!r} is not allowed, only {listed}", suggestion=_nearest(value, map(str, allowed))
        )


def _known(where: str, block: object, keys: tuple[str, ...]) -> None:
    if not isinstance(block, Mapping):
        raise SettingsError(
            f"{where}: expected a table, got {type(block).__name__}", suggestion=f"known keys: {', '.join(keys)}"
        )
    for key in block:
        if key not in keys:
            raise SettingsError(
                f"{where}: unknown key {key!r}", suggestion=_nearest(key, keys) or f"known: {', '.join(keys)}"
            )


def _allowed(allow: object) -> dict[str, frozenset[str]]:
    _known("processing.coercion.allow", allow, tuple(CONVERSIONS))
    assert isinstance(allow, Mapping)
    return {kind: _conversions(kind, tokens) for kind, tokens in allow.items()}


def _conversions(kind: str, tokens: object) -> frozenset[str]:
    where = f"processing.coercion.allow.{kind}"
    if isinstance(tokens, str) or not isinstance(tokens, Iterable):
        raise SettingsError(f"{where}: expected a list", suggestion=f'write ["{CONVERSIONS[kind][0]}"]')
    listed = frozenset(tokens)
    for token in sorted(listed.difference(CONVERSIONS[kind]), key=str):
        raise SettingsError(
            f"{where}: unknown conversion {token!r}",
            suggestion=_nearest(token, CONVERSIONS[kind]) or f"known: {', '.join(CONVERSIONS[kind])}",
        )
    return listed


def _nearest(given: object, known: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(str(given), list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else None
