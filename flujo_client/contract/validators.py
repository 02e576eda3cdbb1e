"""The rules for a `processing` block, key by key: each check raises a `BlueprintError` that names the key and suggests a fix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flujo_client.contract.suggestions import did_you_mean
from flujo_client.errors import BlueprintError


def refused(key: str, what: str, way_out: str | None) -> BlueprintError:
    return BlueprintError(f"processing.{key}: {what}", suggestion=way_out)


def one_of(key: str, value: object, allowed: tuple[str, ...] | tuple[int, ...]) -> None:
    if isinstance(value, bool) or value not in allowed:
        listed = ", ".join(map(repr, allowed))
        raise refused(key, f"{value!r} is not allowed, only {listed}", did_you_mean(value, map(str, allowed)))


def flag(key: str, value: object) -> None:
    if not isinstance(value, bool):
        raise refused(key, f"{value!r} is neither true nor false", "write true or false")


def text(key: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise refused(key, f"{value!r} is not a text", "write a text in quotes")


def number(key: str, value: Any, *, least: float, most: float | None = None, whole: bool = False) -> None:
    bounds = f"{least:g} or more" if most is None else f"{least:g} to {most:g}"
    is_number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not is_number or not least <= value <= (value if most is None else most):
        raise refused(key, f"{value!r} is not allowed", f"write {'a whole number, ' if whole else ''}{bounds}")


def texts(key: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise refused(key, f"expected a list, got {type(value).__name__}", 'write ["…", "…"]')
    listed = tuple(value)
    for each in listed:
        text(key, each)
    return listed


def known(where: str, block: object, keys: tuple[str, ...]) -> None:
    if not isinstance(block, Mapping):
        message = f"{where}: expected a table, got {type(block).__name__}"
        raise BlueprintError(message, suggestion=f"known keys: {', '.join(keys)}")
    for key in block:
        if key not in keys:
            message = f"{where}: unknown key {key!r}"
            raise BlueprintError(message, suggestion=did_you_mean(key, keys) or f"known: {', '.join(keys)}")
