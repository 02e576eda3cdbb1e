"""A question to a person as it is recorded and read back, the check of an answer, and the token of a link that answers it. Pure.

A token is signed and names one question: run, key, expires. It does not reopen an answered question.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from flujo_client.contract.json_schema import fits_schema
from flujo_client.contract.records import LIVE_RUN
from flujo_client.errors import ResumeError

OPEN = "open"
Keys = Sequence[tuple[str, bytes]]
"""Signing keys with their ids; the first one signs, any of them verifies."""


@dataclass(frozen=True, slots=True)
class Approval:
    """A question to a person."""

    run_id: str
    pipeline: str
    address: str
    step: str
    key: str
    """The key of the attempt that waits for the answer."""
    message: str
    """The question."""
    schema: dict[str, Any] | None
    """The JSON Schema of answers; None for any answer."""
    asked_at: datetime
    run_status: str
    """The status of its run."""
    state: str = OPEN
    """Open, answered, expired, or closed with its run."""
    expires_at: datetime | None = None
    """The time when it closes; None if it stays open."""
    actor: str | None = None
    """The person to whom the question was escalated, if it was."""
    refused: str | None = None
    """The reason why the previous answer was rejected."""
    answered_by: str | None = None
    note: str | None = None
    answered_at: datetime | None = None
    """`answered_by`, `note`, `answered_at`: the person who answered, the reason and the time."""
    token: str | None = None
    """The token that answers it from a link; None without a signing key."""

    @property
    def place(self) -> str:
        """Return its place, for people."""
        return f"{self.address}/{self.step}" if self.address else self.step


def state_of(attempt: str, run: str, *, is_answered: bool, is_over: bool) -> str:
    """Return a question's state from its attempt's and its run's status: open, answered, expired or closed."""
    if is_answered:
        return "answered"
    if attempt == "cancelled" or (attempt == "paused" and run not in LIVE_RUN):
        return "closed"
    return OPEN if attempt == "paused" and not is_over else "expired"


def choose(
    run_id: str,
    status: str,
    approvals: Sequence[Approval],
    *,
    step: str | None,
    address: str | None,
    key: str | None = None,
) -> Approval:
    """Choose a question among all of a run: the one with this step, address or key, or the only one that is open.

    Raises:
        ResumeError: the question is not open, and why; or several are open, and the arguments do not choose one.
    """
    named = [
        each
        for each in approvals
        if step in (None, each.step) and address in (None, each.address) and key in (None, each.key)
    ]
    open_ = [each for each in named if each.state == OPEN]
    if len(open_) == 1:
        return open_[0]
    if open_:
        places = ", ".join(f"'{each.place}'" for each in open_)
        message = f"run {run_id} has {len(open_)} open questions: {places}"
        raise ResumeError(message, suggestion="choose one by its step or its address", code="SEVERAL_QUESTIONS")
    if named:
        raise closed(named[-1])
    if status not in LIVE_RUN:
        raise ResumeError(f"run {run_id} is {status}: its questions can no longer be answered", code="RUN_ENDED")
    if step is None and address is None and key is None:
        hint = "it waits for an event: `flujo lens show` names it" if status == "paused" else None
        raise ResumeError(f"run {run_id} is {status} and has no open question", suggestion=hint, code="NOT_PAUSED")
    known = ", ".join(f"'{each.place}'" for each in approvals if each.state == OPEN) or "none"
    which = f"with the id '{key}'" if key is not None else f"at {address or ''!r}, step {step or 'any'!r}"
    raise ResumeError(f"run {run_id} has no question {which}; open are: {known}", code="UNKNOWN_QUESTION")


def closed(approval: Approval) -> ResumeError:
    """Return why a question cannot be answered any more."""
    where = f"the question '{approval.place}' of run {approval.run_id}"
    if approval.state == "answered":
        at = f"{approval.answered_at:%Y-%m-%d %H:%M:%S %Z}" if approval.answered_at else "before"
        message = f"{where} was answered by {approval.answered_by or 'an unnamed person'} at {at}"
        return ResumeError(message, code="ALREADY_ANSWERED")
    if approval.state == "expired":
        return ResumeError(f"{where} has expired", code="QUESTION_EXPIRED")
    return ResumeError(f"{where} is closed: its run is {approval.run_status}", code="RUN_ENDED")


def check_answer(approval: Approval, value: Any) -> None:
    """Raise ResumeError, which names the place, for an answer that does not fit its question's schema."""
    wrong = None if approval.schema is None else fits_schema(value, approval.schema, shows_value=True)
    if wrong:
        message = f"the answer to '{approval.place}' does not fit: {wrong}"
        way_out = "`approvals()`, or `flujo approvals list --json`, shows the schema"
        raise ResumeError(message, suggestion=way_out, code="ANSWER_REFUSED")


def verdict(schema: Mapping[str, Any] | None, *, approved: bool) -> Any:
    """Return yes or no as a question takes it: for one call or each of several, or as `approved`."""
    properties = (schema or {}).get("properties") or {}
    if takes_flag(schema):
        return approved
    if "approved" not in properties and properties and all(map(takes_flag, properties.values())):
        return dict.fromkeys(properties, approved)
    return {"approved": approved}


def takes_flag(schema: Any) -> bool:
    """Return whether a schema takes true and false."""
    wanted = schema.get("type") if isinstance(schema, Mapping) else None
    return wanted == "boolean" or (isinstance(wanted, list) and "boolean" in wanted)


_MARK = "fq1"


def make_token(run_id: str, key: str, expires_at: datetime | None, keys: Keys) -> str | None:
    """Sign a question with the first of the keys; None without any."""
    return sign_token(_MARK, [run_id, key, None if expires_at is None else expires_at.timestamp()], keys)


def signed(approvals: Sequence[Approval], keys: Keys) -> list[Approval]:
    """Give questions their tokens."""
    return [replace(each, token=make_token(each.run_id, each.key, each.expires_at, keys)) for each in approvals]


def read_token(token: str, keys: Keys, *, now: float) -> tuple[str, str]:
    """Return the run that a token is for, and the key of the attempt that asks; any of the keys may have signed it, `now` is in unix seconds.

    Raises:
        ResumeError: it was not signed by one of the keys, is damaged, or its question has expired.
    """
    bound = verify_token(_MARK, token, keys)
    if bound is None:
        message = "this is not a valid approval token"
        way_out = "use the token from `approvals` unchanged, on a client with the same signing keys"
        raise ResumeError(message, suggestion=way_out, code="BAD_TOKEN")
    run_id, key, expires = bound
    if expires is not None and expires <= now:
        raise ResumeError("the question of this token has expired", code="QUESTION_EXPIRED")
    return run_id, key


def sign_token(mark: str, content: Sequence[Any], keys: Keys) -> str | None:
    """Sign plain values with the first of the keys; None without any. The `mark` tells tokens of different purposes apart."""
    if not keys:
        return None
    key_id, secret = keys[0]
    body = base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")
    return f"{mark}:{key_id}:{_mac(secret, mark, key_id, body)}:{body}"


def verify_token(mark: str, token: str, keys: Keys) -> list[Any] | None:
    """Return the values that a token was signed for; None if it is damaged, of another purpose, or signed with none of the keys."""
    claimed_mark, _, rest = token.partition(":")
    key_id, _, rest = rest.partition(":")
    claimed, _, body = rest.partition(":")
    secret = dict(keys).get(key_id)
    if claimed_mark != mark or secret is None or not claimed.isascii():
        return None
    if not hmac.compare_digest(_mac(secret, mark, key_id, body), claimed):
        return None
    content: list[Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return content


def _mac(secret: bytes, mark: str, key_id: str, body: str) -> str:
    # Messages are signed with the same keys: the prefix prevents that one is taken for the other.
    return hmac.new(secret, f"{mark}:{key_id}:{body}".encode(errors="replace"), hashlib.sha256).hexdigest()
