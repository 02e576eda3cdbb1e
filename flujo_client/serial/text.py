"""Text that Postgres takes: no NUL, no lone surrogates."""

from __future__ import annotations


def is_storable_text(text: str) -> bool:
    """Return whether Postgres stores a text unchanged: it has neither a NUL nor a lone surrogate."""
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def storable_text(text: str, *, most: int | None = None) -> str:
    """Replace characters that Postgres does not accept, and join pairs of surrogates. An ellipsis replaces text beyond `most` characters."""
    if most is not None and len(text) > most:
        text = f"{text[: most - 1]}…"
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace("\0", "\N{SYMBOL FOR NULL}")
