"""Remove what looks like a secret from output: providers' keys, headers, passwords in URLs and after their names.

It cannot know every secret, and in doubt hides more; its time is proportional to the text. Doing it twice changes nothing. The other fields
that a project hides are set once for the process.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Literal

from flujo_client.patterns import compiled

PREVIEW = 200
"""Characters of a preview, unless more are requested."""
_AROUND = 256
_HIDDEN = "***"
_OTHER_KEYS = "PRIMARY FOREIGN UNIQUE IDEMPOTENCY PARTITION SORT CACHE GROUP ROUTING PUBLIC SHARD HASH RANGE ROW INDEX LOOKUP DEDUP OBJECT MAP"
_OTHER_PASSES = "first second third last next one two single multi low high band by"
_KEYS = "api private signing encryption decryption access account auth master ssh hmac jwt webhook service storage openai anthropic azure google gemini mistral groq cohere stripe github aws"
_TOKENS = "access auth refresh session bearer id api bot csrf xsrf security oauth oauth2 jwt personal deploy github gitlab slack hf sas webhook device push registration reset"


def _after(words: str, name: str) -> str:
    return rf"(?:{words.replace(' ', '|')})[_-]?{name}"


def _not_after(words: str) -> str:
    return "".join(rf"(?<!{word}[_-])" for word in words.split())


_OF_SECRET = compiled(
    r"(?i)(?:(?:password|passwd|passphrase|passcode|credential|cookie)s?"
    r"|secrets?(?:[_-]?access)?(?:[_-]?keys?)?(?:[_-]?base)?"
    rf"|{_after(_KEYS, 'keys?')}|(?-i:(?<=[A-Z0-9]_){_not_after(_OTHER_KEYS)}KEYS?)"
    rf"|(?:(?<=[_.-]){_not_after(_OTHER_PASSES)}|(?-i:(?<=[a-z])(?=P)))(?:pass|pwd)s?"
    r")(?:[_-]?\d{1,3})?$"
)
_OF_TOKEN = compiled(rf"(?i)(?:{_after(_TOKENS, 'tokens?')}|(?-i:(?<=[A-Z0-9]_)TOKEN)|[_.-]token)$")
_ALONE = compiled(r"(?i)pass|pwd|token")
"""The endings of names of secrets.

`KEYS` and `TOKEN` count after any other word in names of variables; those of `_ALONE` may mean something else in a sentence.
"""
_NAMED = compiled(r"(?<![\w-])([\w-]++)(\\*['\"]?\s*(?:=>?|:=?)\s*)")
_LONGEST_NAME = 100
_COUNT = compiled(r"\d{1,9}(?![\w.-])")
_CLOSED = r"(?=\s|$|[,:;)\]}'\"\\])"
_QUOTED = "|".join(
    rf"{quote}(?:(?:{escape}|[^{quote}\\]|{quote}(?!{_CLOSED})){{0,1024}}+){quote}"
    for quote in "'\""
    for escape in (r"\\+.", r"\\.", r"\\")  # of `repr`, of libpq, of a shell
)
_AROUND_IT = r"['\"](?:\s|$|[,:;)\]}]+(?:\s|$|['\"{\[\d-]))"
"""The quote that closes a text around the name and the value."""
_WORD = rf"(?:{_QUOTED})?+(?:(?!{_AROUND_IT}|(?<=['\"])[,:;)\]}}])(?:\\.|{_QUOTED}|['\"]\S*+|[^\s'\"\\]))*+"
"""A word as a shell and libpq read one: parts of it may be quoted. A quote within is the password's, unless what follows says that it closes."""
_VALUE = compiled(
    r"(?s)\*{3}"
    r"|(?:(\\+)(['\"])(?:(?!(?<!\\)\1\2).)*+(?:\1\2)?"  # quoted in a text that is quoted itself
    rf"|\[[^\]]{{0,4096}}+\]?|\{{[^}}]{{0,4096}}+\}}?)(?:(?=\w){_WORD})?"
    rf"|{_WORD}"
)
_PARAMETER = compiled(r"[^\s&;]*+")
"""The text after a name and a sign, as in JSON, TOML, a variable, libpq's parameters or the output of `repr`; in a query or a list by semicolons."""


@lru_cache(4096)
def _kind(name: str) -> Literal["secret", "token", "alone"] | None:
    """Return what a name reveals about its value."""
    if _OF_SECRET.search(name):
        return "secret"
    if _OF_TOKEN.search(name):
        return "token"
    return "alone" if _ALONE.fullmatch(name) else None


def _without_named(text: str) -> str:
    parts, at = [], 0
    for found in _NAMED.finditer(text):
        kind = _kind(found[1][-_LONGEST_NAME:]) if found.start() >= at else None
        is_count = kind != "secret" and _COUNT.match(text, found.end())
        is_prose = kind == "alone" and "=" not in found[2] and found[2][0] not in "'\"\\"
        is_folder = found[1] == "PWD" and text.startswith("/", found.end())
        if kind is None or is_count or is_prose or is_folder:
            continue
        if end := _end_of_value(text, found):
            parts += [text[at : found.end()], _HIDDEN]
            at = end
    return "".join([*parts, text[at:]])


def _end_of_value(text: str, name: re.Match[str]) -> int | None:
    is_parameter = text[max(0, name.start() - 1) : name.start()] in {"?", "&", ";"}
    value = (_PARAMETER if is_parameter else _VALUE).match(text, name.end())
    end = name.end() + len(value[0].rstrip(",;)]}")) if value else 0
    return end if end > name.end() else None


def _without_userinfo(text: str) -> str:
    """Hide passwords in URLs, whatever they contain: up to the last `@` of the line before another URL."""
    parts, at = [], 0
    for user in _USER.finditer(text):
        line = _LINE.match(text, user.end())
        if user.start() < at or line is None or line[0].startswith(f"{_HIDDEN}@"):
            continue
        shown = _PORT.match(line[0]) or line
        password, is_one, _ = shown[0].rpartition("@")
        if is_one:
            parts += [text[at : user.end()], _HIDDEN]
            at = user.end() + len(password)
    return "".join([*parts, text[at:]])


def _without_basic(found: re.Match[str]) -> str:
    """Hide what is base64 of a name, a colon and a password; "basic functionality" is not."""
    try:
        decoded = base64.b64decode(found[2] + "=" * (-len(found[2]) % 4), altchars=b"-_", validate=True).decode()
    except ValueError:
        return found[0]
    return f"{found[1]}***" if ":" in decoded and decoded.isprintable() else found[0]


def _without_option(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}{_HIDDEN}" if _names_a_secret(found[1], found[3]) else found[0]


_SECRETS: tuple[tuple[tuple[str, ...], re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (
        ("sk-", "sk_", "rk_", "whsec_", "ghp_", "gho_", "ghs_", "ghu_", "ghr_", "github_pat_", "aiza"),
        compiled(r"\b(sk-|sk_live_|sk_test_|rk_live_|whsec_|gsk_|gh[opsur]_|github_pat_|AIza)[\w-]{6,}"),
        r"\1***",
    ),
    (
        ("xai-", "pplx-", "hf_", "r8_", "npm_", "pypi-", "glpat-", "dop_v1_", "xox", "sg.", "ya29.", "gocspx-", "hvs."),
        compiled(r"\b(xai-|pplx-|hf_|r8_|npm_|pypi-|glpat-|dop_v1_|xox[a-z]-|SG\.|ya29\.|GOCSPX-|hvs\.)[\w.-]{16,}"),
        r"\1***",
    ),
    (
        ("lsv2_", "tvly-", "dapi", "lin_api_", "ntn_", "services/t"),
        compiled(r"\b(lsv2_|tvly-|dapi|lin_api_|ntn_|services/T)(?=\w*\d)[\w/-]{16,}"),
        r"\1***",
    ),
    (("akia", "asia"), compiled(r"\b(AKIA|ASIA)[0-9A-Z]{16}\b"), r"\1***"),
    (("eyj",), compiled(r"(?<![\w-])(eyJ)[\w-]{8,}+\.[\w-]{8,}(?:\.[\w-]*)?"), r"\1***"),
    (
        ("-----begin ",),
        compiled(
            r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY(?: BLOCK)?-----(?:[^-]|-(?!----))*+(?:-----END [A-Z ]{0,32}PRIVATE KEY(?: BLOCK)?-----)?"
        ),
        _HIDDEN,
    ),
    (
        ("authorization",),
        compiled(
            r"(?i)(authorization\\*['\"]?\s*[=:]\s*\\*['\"]?)"
            r"(?:(?:basic|bearer|token|digest|negotiate|api-?key|aws4-hmac-sha256)\s+[^'\"\\\r\n]+|(?:\w+\s+)?[^\s'\"\\,;]{6,})"
        ),
        r"\1***",
    ),
    (("bearer",), compiled(r"(?i)\b(bearer\s+)[\w.~+/=-]{6,}"), r"\1***"),
    (("basic",), compiled(r"(?i)\b(basic\s+)([\w+/-]{6,}={0,2})"), _without_basic),
    (
        ("token=", "sig=", "signature=", "key=", "auth=", "credential="),
        compiled(
            r"(?i)([?&](?:token|sig|signature|key|auth|x-amz-(?:signature|credential|security-token))=)[^&\s'\"#]+"
        ),
        r"\1***",
    ),
    (("cookie:",), compiled(r"(?i)(cookie:[ \t]*)[^\s'\"][^\r\n'\"]*"), r"\1***"),
    (("--",), compiled(rf"(?s)(?<![\w-])(--[\w-]{{1,64}})(['\"]?,?[ \t]+)(?!-)({_WORD})"), _without_option),
)
"""Each shape with a string that a matching text must contain: most texts contain none of them."""
_USER = compiled(r"://[^\s:/\[]{0,256}:")
_LINE = compiled(
    r"[^@\r\n]{0,256}@(?:(?![\s'\"(,;][a-z][\w+.-]{0,20}://|['\"][,:;)\]}]+(?:\s|$|['\"{\[\d-]))[^\r\n]){0,256}"
)
"""From a URL's user to the end of the line, of a text in quotes or to the next URL, if there is an `@`."""
_PORT = compiled(r"\d{1,5}(?=[/?#\s,;)\]}'\"]|$)\S*(?:[ \t]+[^\s@]*@)?")
_PLURAL = compiled(r"(?i)(?<!s)s$")
_SIGNS = "pass", "pwd", "secret", "key", "cookie", "credential", "token"
_ALL_SIGNS = (*_SIGNS, *(sign for signs, _, _ in _SECRETS for sign in signs))
_SHORTEST_SIGNS = [sign for sign in _ALL_SIGNS if not any(other in sign for other in _ALL_SIGNS if other != sign)]
_MARKS = "-_=."
_MARKED_SIGNS = {mark: [sign for sign in _SHORTEST_SIGNS if mark in sign] for mark in _MARKS}
_PLAIN_SIGNS = [sign for sign in _SHORTEST_SIGNS if not any(mark in sign for mark in _MARKS)]
"""A text with any sign has one of these. A sign with a mark is only searched for in texts with that mark, because each search reads the whole text."""
_SECRET_IN_QUERY = compiled(r"(?i)([?&](?:\w*password|passwd|pwd|secret|token|api_?key)=)[^&#]*")
_NO_PORT = compiled(r"(?s)^([^:/?\[]*:)(?!\d*(?:[/?,]|$))[^/?]*")
"""A port that is not a number: the password of a URL without a host."""
_fields: set[str] = set()
_in_text: list[re.Pattern[str]] = []
"""Finds the hidden fields in a text, behind their names: a prompt shows them as JSON or as a list."""


def hide_fields(names: Iterable[str]) -> None:
    """Hide all that is shown under these names, in any case, in this process."""
    _fields.clear()
    _fields.update(name.casefold() for name in names)
    any_name = "|".join(map(re.escape, sorted(_fields)))
    value = r"(?:\"(?:[^\"\\]|\\.)*\"|[^\n,}]+)"
    _in_text[:] = [compiled(rf"(?i)((?<!\w)(?:{any_name})['\"*`]*\s*[:=]['\"*`]*[ \t]*){value}")] if _fields else []


def redact(text: str) -> str:
    """Replace what looks like a secret in a text."""
    if not has_signs(text):
        return text
    folded = text.casefold()
    text = _without_userinfo(text) if "://" in text else text
    for signs, pattern, replacement in _SECRETS:
        if any(map(folded.__contains__, signs)):
            text = pattern.sub(replacement, text)
    if any(map(folded.__contains__, _SIGNS)):
        text = _without_named(text)
    for pattern in _in_text:
        text = pattern.sub(rf"\1{_HIDDEN}", text)
    return text


def has_signs(text: str) -> bool:
    """Return whether `redact` looks at a text at all; otherwise it has no secret, whatever comes after it."""
    if "://" in text or _in_text:
        return True
    folded = text.casefold()
    return any(map(folded.__contains__, _PLAIN_SIGNS)) or any(
        any(map(folded.__contains__, signs)) for mark, signs in _MARKED_SIGNS.items() if mark in text
    )


def mask_url(url: str) -> str:
    """Return `url` back with its password as `***`; in doubt more is hidden, never less."""
    scheme, separator, rest = url.partition("://")
    user, at, place = rest.rpartition("@")
    if at:
        name, colon, _ = user.partition(":")
        rest = f"{name}:***@{place}" if colon else rest
    else:
        rest = _NO_PORT.sub(r"\1***", rest)
    return _SECRET_IN_QUERY.sub(r"\1***", scheme + separator + rest)


def preview(text: str, most: int = PREVIEW) -> str:
    """Truncate a text, without what looks like a secret: more of it is searched, so that none is cut in half unnoticed."""
    return redact(text[: most + _AROUND])[:most]


def redact_start(text: str, most: int = PREVIEW) -> str:
    """Redact as much of a text as its preview depends on. A secret comes after its sign, so without one at the start the rest is not searched."""
    start = text[: most + _AROUND]
    return redact(text) if has_signs(start) else start


def redact_tree(tree: Any, name: object = "", *, hidden: Iterable[str] | None = None) -> Any:
    """Replace what looks like a secret in the texts of a tree, every text under a name such as `db_password`, and the `hidden` fields.

    These are the process's when None; `name` is what the tree itself is under.
    """
    return _redacted(tree, name, _fields if hidden is None else {each.casefold() for each in hidden})


def _redacted(tree: Any, name: object, fields: set[str], *, is_secret: bool = False) -> Any:
    if fields and str(name).casefold() in fields:
        return _HIDDEN
    if isinstance(tree, dict):
        is_secret = is_secret or _names_a_secret(str(name), tree)
        return {key: _redacted(value, key, fields, is_secret=is_secret) for key, value in tree.items()}
    if isinstance(tree, (list, tuple, set, frozenset)):
        return [_redacted(each, name, fields, is_secret=is_secret) for each in tree]
    if tree is None or isinstance(tree, bool):
        return tree
    if is_secret or _names_a_secret(str(name), tree):
        return _HIDDEN
    return redact(tree) if isinstance(tree, str) else tree


def _names_a_secret(name: str, value: Any) -> bool:
    """Return whether a name says that its value is a secret: `tokens: 12` and `secrets: 3` are counts."""
    if isinstance(value, (int, float)):
        return not _PLURAL.search(name) and _kind(name[-_LONGEST_NAME:]) == "secret"
    return _kind(name[-_LONGEST_NAME:]) is not None or name.casefold().endswith("authorization")
