"""Tokens for links: each names one question to a person and is signed, so that its holder can answer only that question. Pure.

    fq1:<key id>:<hex of HMAC-SHA256>:<base64url of JSON: run, key, expires>

A token proves its origin, not its sender. It contains no secret, and does not reopen an answered question.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from flujo_client.errors import ResumeError

if TYPE_CHECKING:
    from flujo_client.contract.approval import Approval

_MARK = "fq1"


class Bound(NamedTuple):
    """What a token is bound to: a run, and the attempt of it that asks."""

    run_id: str
    key: str


def make_token(run_id: str, key: str, expires_at: datetime | None, keys: Sequence[tuple[str, bytes]]) -> str | None:
    """Sign a question with the first of the keys; None without any."""
    if not keys:
        return None
    key_id, secret = keys[0]
    expires = None if expires_at is None else expires_at.timestamp()
    body = base64.urlsafe_b64encode(json.dumps([run_id, key, expires]).encode()).decode().rstrip("=")
    return f"{_MARK}:{key_id}:{_mac(secret, key_id, body)}:{body}"


def signed(approvals: Sequence[Approval], keys: Sequence[tuple[str, bytes]]) -> list[Approval]:
    """Give questions their tokens."""
    return [replace(each, token=make_token(each.run_id, each.key, each.expires_at, keys)) for each in approvals]


def read_token(token: str, keys: Sequence[tuple[str, bytes]], *, now: float) -> Bound:
    """Read what a token is bound to.

    Args:
        token: what `make_token` gave.
        keys: any of these may have signed it.
        now: unix seconds.

    Raises:
        ResumeError: it was not signed by one of the keys, is damaged, or its question has expired.
    """
    mark, _, rest = token.partition(":")
    key_id, _, rest = rest.partition(":")
    claimed, _, body = rest.partition(":")
    secret = dict(keys).get(key_id)
    if mark != _MARK or secret is None or not _is_signed(secret, key_id, body, claimed):
        raise ResumeError(
            "this is not a valid approval token",
            suggestion="use the token from `approvals` unchanged, on a client with the same signing keys",
            code="BAD_TOKEN",
        )
    run_id, key, expires = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    if expires is not None and expires <= now:
        raise ResumeError("the question of this token has expired", code="QUESTION_EXPIRED")
    return Bound(run_id, key)


def _is_signed(secret: bytes, key_id: str, body: str, claimed: str) -> bool:
    return claimed.isascii() and hmac.compare_digest(_mac(secret, key_id, body), claimed)


def _mac(secret: bytes, key_id: str, body: str) -> str:
    # Messages are signed with the same keys: the prefix prevents that one is taken for the other.
    return hmac.new(secret, f"{_MARK}:{key_id}:{body}".encode(errors="replace"), hashlib.sha256).hexdigest()
