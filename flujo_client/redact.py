"""What looks like a secret, taken out of what is told: providers' keys, bearer tokens, passwords in URLs and behind their names.

It cannot know every secret, and in doubt hides more. Doing it twice changes nothing. Which fields a project hides besides is said once
for the process.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

PREVIEW = 200
"""Characters of a preview, where nobody asks for more."""
_AROUND = 256
_HIDDEN = "***"
_NAMES = r"password|passwd|passphrase|secret(?:[_-]?access)?(?:[_-]?key)?|(?:api|private|signing|encryption)[_-]?key|(?:access|auth|refresh|session|bearer|id)[_-]?token|client[_-]?secret|cookie"
_SECRETS = (
    (("://",), re.compile(r"(://[^\s:/@]{0,256}:)\S{0,4096}@"), r"\1***@"),
    (
        ("sk-", "sk_", "rk_", "whsec_", "gh", "github_pat_", "aiza"),
        re.compile(r"\b(sk-|sk_live_|sk_test_|rk_live_|whsec_|gsk_|gh[opsur]_|github_pat_|AIza)[\w-]{6,}"),
        r"\1***",
    ),
    (
        ("xai-", "pplx-", "hf_", "r8_", "npm_", "pypi-", "glpat-", "dop_v1_", "xox", "sg.", "ya29."),
        re.compile(r"\b(xai-|pplx-|hf_|r8_|npm_|pypi-|glpat-|dop_v1_|xox[a-z]-|SG\.|ya29\.)[\w.-]{16,}"),
        r"\1***",
    ),
    (("akia", "asia"), re.compile(r"\b(AKIA|ASIA)[0-9A-Z]{16}\b"), r"\1***"),
    (("eyj",), re.compile(r"\b(eyJ)[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"), r"\1***"),
    (
        ("-----begin ",),
        re.compile(r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----[^-]*(?:-----END [A-Z ]{0,32}PRIVATE KEY-----)?"),
        _HIDDEN,
    ),
    (
        ("bearer", "authorization"),
        re.compile(r"(?i)\b(bearer|authorization:\s*\w+)\s+[\w.~+/=-]{6,}"),
        r"\1 ***",
    ),
    (
        ("passw", "passphrase", "secret", "key", "token", "cookie"),
        re.compile(rf"(?i)({_NAMES})(['\"]?\s*[=:]\s*)(?:'[^']*'|\"[^\"]*\"|['\"]?[^\s'\",;&]+)"),
        r"\1\2***",
    ),
)
"""Each shape with what a text must hold, in any case, before it is worth a look: most texts hold none of it."""
_SECRET_NAME = re.compile(rf"(?i)(?:.*[_.-])?(?:{_NAMES}|pwd|token|authorization)")
_SECRET_IN_QUERY = re.compile(r"(?i)([?&](?:\w*password|passwd|pwd|secret|token|api_?key)=)[^&#]*")
_NO_PORT = re.compile(r"(?s)^([^:/?\[]*:)(?!\d*(?:[/?,]|$))[^/?]*")
"""What stands in a port's place and is no number: the password of a URL that lacks its host."""
_fields: set[str] = set()
_in_text: list[re.Pattern[str]] = []
"""Finds the hidden fields in a text, behind their names: a prompt shows them as JSON or as a list."""


def hide_fields(names: Iterable[str]) -> None:
    """Hide all that is told under these names, in any case, in this process."""
    _fields.clear()
    _fields.update(name.casefold() for name in names)
    any_name = "|".join(map(re.escape, sorted(_fields)))
    value = r"(?:\"(?:[^\"\\]|\\.)*\"|[^\n,}]+)"
    _in_text[:] = [re.compile(rf"(?i)((?<!\w)(?:{any_name})['\"*`]*\s*[:=]['\"*`]*[ \t]*){value}")] if _fields else []


def redact(text: str) -> str:
    """Replace what looks like a secret in a text."""
    folded = text.casefold()
    for signs, pattern, replacement in _SECRETS:
        if any(sign in folded for sign in signs):
            text = pattern.sub(replacement, text)
    for pattern in _in_text:
        text = pattern.sub(rf"\1{_HIDDEN}", text)
    return text


def mask_url(url: str) -> str:
    """Give `url` back with its password as `***`; in doubt more is hidden, never less."""
    scheme, separator, rest = url.partition("://")
    user, at, place = rest.rpartition("@")
    if at:
        name, colon, _ = user.partition(":")
        rest = f"{name}:***@{place}" if colon else rest
    else:
        rest = _NO_PORT.sub(r"\1***", rest)
    return _SECRET_IN_QUERY.sub(r"\1***", scheme + separator + rest)


def preview(text: str, most: int = PREVIEW) -> str:
    """Cut a text short, without what looks like a secret: more of it is looked through, so that none is cut in half unseen."""
    return redact(text[: most + _AROUND])[:most]


def redact_tree(tree: Any, name: object = "", *, hidden: Iterable[str] | None = None) -> Any:
    """Replace what looks like a secret in the texts of a tree, every text under a name such as `db_password`, and the hidden fields.

    Args:
        tree: plain data.
        name: what it stands under.
        hidden: the fields to hide besides; the process's when None.
    """
    return _redacted(tree, name, _fields if hidden is None else {each.casefold() for each in hidden})


def _redacted(tree: Any, name: object, fields: set[str]) -> Any:
    if fields and str(name).casefold() in fields:
        return _HIDDEN
    if isinstance(tree, str):
        return _HIDDEN if _SECRET_NAME.fullmatch(str(name)) else redact(tree)
    if isinstance(tree, dict):
        return {key: _redacted(value, key, fields) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_redacted(each, name, fields) for each in tree]
    return tree
