"""What looks like a secret, taken out of what is told: provider keys, bearer tokens, passwords in URLs and behind their names.

Pure. It cannot know every secret, and in doubt hides more. Doing it twice changes nothing.
"""

from __future__ import annotations

import re
from typing import Any

_HIDDEN = "***"
_NAMES = r"password|passwd|secret(?:[_-]?access)?(?:[_-]?key)?|(?:api|private)[_-]?key|(?:access|auth|refresh|session)[_-]?token"
_SECRETS = (
    (re.compile(r"(://[^\s:/@]{0,256}:)\S{0,4096}@"), r"\1***@"),
    (re.compile(r"\b(sk-|gsk_|xai-|ghp_|AIza)[\w-]{6,}"), r"\1***"),
    (re.compile(r"(?i)\b(bearer|authorization:\s*\w+)\s+[\w.~+/=-]{6,}"), r"\1 ***"),
    (re.compile(rf"(?i)({_NAMES})(['\"]?\s*[=:]\s*)(?:'[^']*'|\"[^\"]*\"|['\"]?[^\s'\",;&]+)"), r"\1\2***"),
)
_SECRET_NAME = re.compile(rf"(?i)(?:.*[_.-])?(?:{_NAMES}|pwd|token|authorization)")


def redact(text: str) -> str:
    """Replace what looks like a secret in a text."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def redact_tree(tree: Any, name: object = "") -> Any:
    """Replace what looks like a secret in the texts of a tree, and every text under a name such as `db_password`."""
    if isinstance(tree, str):
        return _HIDDEN if _SECRET_NAME.fullmatch(str(name)) else redact(tree)
    if isinstance(tree, dict):
        return {key: redact_tree(value, key) for key, value in tree.items()}
    if isinstance(tree, list):
        return [redact_tree(each, name) for each in tree]
    return tree
