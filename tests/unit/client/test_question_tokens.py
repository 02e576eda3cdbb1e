"""Tokens for links, and which question is meant: pure, without any service (M-452)."""

import base64
import json
import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_client.contract.approval import Approval, check_answer, choose, make_token, read_token
from flujo_client.errors import ResumeError
from flujo_client.transport.wire import sign

KEYS = (("k1", b"a secret of sixteen"), ("k2", b"another secret of it"))
AT = datetime(2030, 1, 1, tzinfo=UTC)


def token(run="run_1", key="run_1::ask:resume", expires=None, keys=KEYS):
    made = make_token(run, key, expires, keys)
    assert made is not None
    return made


def refusal(text, keys=KEYS, now=0.0):
    with pytest.raises(ResumeError) as refused:
        read_token(text, keys, now=now)
    return refused.value.error_code


def test_a_token_says_which_question():
    assert read_token(token(), KEYS, now=0.0) == ("run_1", "run_1::ask:resume")


def test_any_of_the_keys_may_have_signed_it():
    """Keys are rotated: the first signs, all verify."""
    assert read_token(token(keys=KEYS[1:]), KEYS, now=0.0)[0] == "run_1"


def test_without_a_key_there_is_no_token():
    assert make_token("run_1", "key", None, ()) is None
    assert refusal(token(), keys=()) == "BAD_TOKEN"


def test_a_token_ends_with_its_question():
    made = token(expires=AT)
    assert read_token(made, KEYS, now=AT.timestamp() - 1)[0] == "run_1"
    assert refusal(made, now=AT.timestamp()) == "QUESTION_EXPIRED"


@given(st.integers(0, 200), st.characters())
def test_a_token_with_anything_changed_is_refused(place, letter):
    made = token()
    place %= len(made)
    changed = made[:place] + letter + made[place + 1 :]
    if changed != made:
        assert refusal(changed) == "BAD_TOKEN"


@given(st.text())
def test_anything_else_is_no_token(text):
    assert refusal(text) == "BAD_TOKEN"


def test_a_body_of_another_question_does_not_fit_the_signature():
    mark, key_id, mac, _ = token().split(":")
    body = base64.urlsafe_b64encode(json.dumps(["run_2", "run_2::ask:resume", None]).encode()).decode().rstrip("=")
    assert refusal(f"{mark}:{key_id}:{mac}:{body}") == "BAD_TOKEN"


def test_a_signed_message_is_no_token():
    """The same keys sign both, and neither can be taken for the other."""
    body = base64.urlsafe_b64encode(json.dumps(["run_1", "key", None]).encode()).rstrip(b"=")
    _, key_id, rest = sign(body, KEYS[0]).decode().split(":", 2)
    mac, _, text = rest.partition("\n")
    assert refusal(f"fq1:{key_id}:{mac}:{text}") == "BAD_TOKEN"


def question(step="ask", address="", **rest):
    given = {"message": "go?", "schema": None, "asked_at": AT, "run_status": "running", **rest}
    return Approval(
        run_id="run_1", pipeline="p", address=address, step=step, key=f"run_1:{address}:{step}:resume", **given
    )


def test_the_only_open_question_is_meant():
    asked = [question("first", state="answered"), question("second")]
    assert choose("run_1", "paused", asked, step=None, address=None).step == "second"


def test_one_of_several_is_named_by_its_place():
    asked = [question(address="l#1", state="answered"), question(address="p/a"), question(address="p/b")]
    assert choose("run_1", "paused", asked, step="ask", address="p/b").address == "p/b"


def test_a_large_answer_is_looked_at_whole():
    """U-36."""
    check_answer(question(schema={"items": {"type": "integer"}}), list(range(50_000)))
    with pytest.raises(ResumeError, match="50000 breaks the rule"):
        check_answer(question(schema={"items": {"type": "integer"}}), [*range(50_000), "x"])


def test_an_answer_is_held_to_the_schema_in_plain_words():
    with pytest.raises(ResumeError) as refused:
        check_answer(question(schema={"type": "object", "properties": {"n": {"type": "integer"}}}), {"n": "s3cret"})
    assert str(refused.value).startswith("the answer to 'ask' does not fit: n breaks the rule 'type'")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("schema", "answer", "said"),
    [
        ({"type": "boolean"}, "nonsense", "expected boolean, got 'nonsense'"),
        ({"type": "boolean"}, "password=hunter2", "expected boolean, got 'password=***'"),
        ({"type": "boolean"}, {"yes": True}, "expected boolean, got object"),
        ({"enum": ["ship", "wait"]}, "shipp", "expected one of 'ship', 'wait', got 'shipp'"),
        ({"type": "object", "required": ["approved"]}, {}, "it lacks 'approved'"),
        ({"minimum": 5}, 3, "breaks the rule 'minimum', which is 5"),
    ],
)
def test_a_wrong_answer_is_told_with_what_was_expected(schema, answer, said):
    with pytest.raises(ResumeError, match=re.escape(said)):
        check_answer(question(schema=schema), answer)
