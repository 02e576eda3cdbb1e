"""The ways models answer when they are asked for JSON: what the demo's offline model says, so that AROS has something to do.

Pure, and the same for the same question: which way is taken follows from the distribution's name. In: the true verdict; out: a text
that says it, tidily or not. A model that receives what was wrong with its answer answers properly.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flujo_demo.license_facts import LicenseVerdict


def untidy_reply(verdict: LicenseVerdict, question: str, *, asked_again: bool) -> str:
    """Write a verdict in the style that this question gets."""
    text = verdict.model_dump_json()
    ways = _WAYS if not asked_again else (_as_asked,)
    return ways[zlib.crc32(question.encode()) % len(ways)](text)


def _as_asked(text: str) -> str:
    return text


def _in_prose(text: str) -> str:
    return f"Here's what the metadata say:\n\n```json\n{text}\n```\n\nLet me know if you need anything else!"


def _thinking_aloud(text: str) -> str:
    return f'<think>It might be {{"spdx": "MIT"}}, but the classifiers say more.</think>\n{text}'


def _number_as_text(text: str) -> str:
    verdict = json.loads(text)
    return json.dumps(verdict | {"confidence": str(verdict["confidence"])})


def _trailing_comma(text: str) -> str:
    return f"{text[:-1]},}}"


def _in_words(text: str) -> str:
    return json.dumps(json.loads(text) | {"confidence": "quite sure"})


def _cut_off(text: str) -> str:
    return text[: len(text) * 2 // 3]


_WAYS: tuple[Callable[[str], str], ...] = (
    *(3 * (_as_asked,)),
    _in_prose,
    _thinking_aloud,
    _number_as_text,
    _trailing_comma,
    _in_words,
    _cut_off,
)
