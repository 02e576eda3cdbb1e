"""Message bodies: plain JSON only, signed when there are keys, refused as undecodable (M-014, SYS-02)."""

import json
from collections.abc import Iterator
from typing import Any

import kombu
import pytest
from celery import Celery, signature
from celery.utils.functional import regen
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu import serialization
from kombu.exceptions import ContentDisallowed, DecodeError, EncodeError

from flujo_client.errors import SettingsError
from flujo_client.transport.entry import CONTENT_TYPE
from flujo_client.transport.wire import SERIALIZER, dump, load, register

OLD, NEW = ("k1", b"an old secret of some length"), ("k2", b"a new secret of some length")
MESSAGE: Any = [["a", 1], {"key": [None, "é"]}, {"chord": None}]


@pytest.fixture(autouse=True)
def _unregister() -> Iterator[None]:
    register()
    yield
    serialization.unregister(SERIALIZER)


def written(payload: Any = MESSAGE) -> bytes:
    return serialization.dumps(payload, serializer=SERIALIZER)[2]


def read(body: Any) -> Any:
    return serialization.loads(body, CONTENT_TYPE, "binary", accept={CONTENT_TYPE})


def test_a_message_crosses_kombu():
    content_type, encoding, body = serialization.dumps(MESSAGE, serializer=SERIALIZER)
    assert (content_type, encoding, type(body)) == (CONTENT_TYPE, "binary", bytes)
    assert read(body) == read(body.decode()) == read(memoryview(body)) == MESSAGE


def test_it_crosses_a_transport():
    with kombu.Connection("memory://") as connection:
        queue = connection.SimpleQueue("wire-test", serializer=SERIALIZER)
        queue.consumer.accept = {CONTENT_TYPE}
        register([NEW])
        queue.put(MESSAGE)
        message = queue.get(timeout=60)
        assert message.payload == MESSAGE
        message.ack()


def test_pickle_and_yaml_stay_off():
    """M-014."""
    for kind in ("application/x-python-serialize", "application/x-yaml"):
        with pytest.raises(ContentDisallowed):
            serialization.loads(b"x", kind, "binary", accept={CONTENT_TYPE})


def test_celerys_own_containers_cross():
    """Signatures are dicts; lazy lists hold nothing where orjson looks."""
    step = signature("task", args=(1,), app=Celery(set_as_current=False))
    back = read(written([(regen(iter([1, step])),), {}, {"chord": step}]))
    assert back[0][0][1]["task"] == back[2]["chord"]["task"] == "task"


@pytest.mark.parametrize("value", [{1, 2}, object(), b"bytes", 2**64, Exception("hush")])
def test_what_is_not_plain_is_named_with_its_place(value):
    with pytest.raises(EncodeError, match=r"message\[1\]\['deep'\]\[0\]: object of type \w+ is not plain JSON"):
        written([[], {"deep": [value]}, {}])


@pytest.mark.parametrize("body", [b"5", b'"text"', b"null", b"{", b"\xff\xfe", b"[1,", b"\x80\x04K\x05."])
def test_what_is_no_message_is_undecodable(body):
    """A bare value would pass kombu and end Celery's consumer."""
    with pytest.raises(DecodeError):
        read(body)


def test_a_signed_message_is_one_line_and_json():
    register([NEW])
    header, _, text = written().partition(b"\n")
    assert header.startswith(b"fw1:k2:")
    assert json.loads(text) == MESSAGE


def test_the_first_key_signs_and_every_key_verifies():
    register([OLD])
    from_old = written()
    register([NEW, OLD])
    assert read(from_old) == MESSAGE
    assert written().startswith(b"fw1:k2:")
    register([NEW])
    with pytest.raises(DecodeError, match="unknown key 'k1'"):
        read(from_old)


def test_with_keys_an_unsigned_message_is_refused():
    unsigned = written()
    register([NEW])
    with pytest.raises(DecodeError, match="not signed"):
        read(unsigned)


def test_without_keys_a_signed_message_is_refused():
    register([NEW])
    signed = written()
    register()
    with pytest.raises(DecodeError, match="unknown key"):
        read(signed)


def test_another_secret_under_the_same_id_is_refused():
    register([("k2", b"a guess of some length!!")])
    forged = written()
    register([NEW])
    with pytest.raises(DecodeError, match="does not fit"):
        read(forged)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_any_flipped_bit_is_refused(data):
    """M-014: tampered messages are rejected, not executed."""
    register([NEW, OLD])
    body = bytearray(written())
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DecodeError):
        read(bytes(body))


@given(st.binary(min_size=1))
def test_noise_never_raises_anything_else(noise):
    register([NEW])
    for body in (noise, b"fw1:" + noise, written().partition(b"\n")[0] + noise):
        with pytest.raises(DecodeError):
            read(body)


def test_oversize_is_refused_both_ways():
    body = written()
    register(max_bytes=len(body))
    assert read(body) == MESSAGE
    register(max_bytes=len(body) - 1)
    with pytest.raises(DecodeError, match="more than"):
        read(body)
    with pytest.raises(EncodeError, match="more than"):
        written()


def test_a_celery_consumer_drops_the_refused_and_continues():
    """The way a consumer reads: `Message.decode`, with a decode error handed to the callback that acknowledges."""
    register([NEW])
    refused: list[Exception] = []
    with kombu.Connection("memory://") as connection, connection.channel() as channel:
        queue = kombu.Queue("wire-refused", channel=channel)
        consumer = kombu.Consumer(channel, [queue], accept=[CONTENT_TYPE])
        consumer.on_decode_error = lambda message, error: (refused.append(error), message.ack())
        seen: list[Any] = []
        consumer.register_callback(lambda body, message: (seen.append(body), message.ack()))
        producer = kombu.Producer(channel, routing_key="wire-refused")
        producer.publish(b"[[],{},{}]", content_type=CONTENT_TYPE, content_encoding="binary")
        producer.publish(MESSAGE, serializer=SERIALIZER)
        with consumer:
            connection.drain_events(timeout=60)
            connection.drain_events(timeout=60)
    assert [type(error) for error in refused] == [DecodeError]
    assert seen == [MESSAGE]


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ([("a:b", b"x" * 16)], "key id"),
        ([("", b"x" * 16)], "key id"),
        ([("k", b"short")], "at least 16 bytes"),
        ([NEW, NEW], "twice"),
    ],
)
def test_unusable_keys_are_refused_without_showing_them(keys, reason):
    with pytest.raises(SettingsError, match=reason) as caught:
        register(keys)
    assert "short" not in str(caught.value)


def test_the_functions_stand_alone():
    assert load(dump(MESSAGE, keys=[NEW]), keys=[OLD, NEW]) == MESSAGE
