"""What an attempt waits for before it is at work, in words: the same in a trace, in `flujo run` and in warnings of clients. Pure.

A wait is a mapping with what it is `for`: an `answer`, its step's concurrency `limit`, its model's `breaker` or `rate` limit, its `retry` or a
`worker`. A limit's names the `limit`, with `in_use` and `at_once`; a model's names the `model`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_WORDS: Final = {
    "answer": "for an answer from a person",
    "breaker": "for its model's breaker",
    "rate": "for its model's rate limit",
    "retry": "to be tried again",
    "worker": "for a worker",
}


def waits_in_words(wait: Mapping[str, Any]) -> str:
    """Return what a wait is for, as it follows the word "waits"."""
    if wait["for"] == "limit":
        return f"for {wait['limit']} ({wait['in_use']} of {wait['at_once']} in use)"
    model = f" ({wait['model']})" if wait.get("model") else ""
    return _WORDS[wait["for"]] + model
