"""From what a caller gives to what enqueue records; everything that can be refused is refused here."""

from dataclasses import replace
from datetime import timedelta

import pytest
from pydantic import BaseModel

from flujo_client import PipelineContext, RunLimit, Settings
from flujo_client.api.operations import FoundPipeline, new_run_of
from flujo_client.config.models import SizeLimits, Worker
from flujo_client.contract.envelope import ATTEMPTS_QUEUE, Envelope
from flujo_client.errors import (
    ConfigurationError,
    PipelineContextInitializationError,
    SerializationError,
    SnapshotTooLarge,
)
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.submit import Order, new_run
from flujo_client.serial import Resolver, decode, dumps, loads, register_custom_deserializer, register_custom_serializer
from tests.support.builders import enqueued, packed, pipeline_of


class Book(BaseModel):
    total: int = 0
    note: str = ""


class Odometer:
    """Comes back as something else than was sent: its registration is wrong."""

    def __init__(self, total):
        self.total = total


register_custom_serializer(Odometer, lambda it: it.total)
register_custom_deserializer(Odometer, lambda total: Odometer(total + 1))


def context_of(new):
    return decode(new.first.context.tree(), resolve=Resolver(["*"]))


def test_the_first_attempt_stands_at_the_root():
    new = enqueued(value={"k": 1})
    assert (new.first.address, new.first.step, new.first.number, new.first.version) == ("", "a", 1, 0)
    assert (new.first.input, new.first.context, new.first.queue) == (packed({"k": 1}), None, ATTEMPTS_QUEUE)
    assert new.first.ticket.fingerprint == new.plan.fingerprint


def test_steps_go_to_the_queue_that_the_settings_name():
    settings = Settings(worker=Worker(attempts_queue="ours"))
    found = FoundPipeline(compile_plan(pipeline_of("a"), default_name="p"), "m:p", None)
    assert new_run_of(settings, found, 1, {}).first.queue == "ours"
    assert new_run_of(settings, found, 1, {"queue": "theirs"}).first.queue == "theirs"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"priority": True}, "priority True must be from 0"),
        ({"priority": 5.0}, r"priority 5\.0 must be from 0"),
        ({"trace_parent": 5}, "trace_parent '5' is not a W3C trace context"),
        ({"deadline_s": "60"}, "`deadline_s` must be a number of seconds, got a str"),
        ({"deadline_s": True}, "`deadline_s` must be a number of seconds, got a bool"),
        ({"deadline_s": timedelta(hours=1), "delay_s": 1}, "`deadline_s` must be a number of seconds, got a timedelta"),
        ({"run_limits": 5}, "`run_limits` must be a list of RunLimits, got a int"),
        ({"run_limits": "crm"}, "`run_limits` must be a list of RunLimits, got a str"),
        ({"run_limits": RunLimit("crm", 5)}, "`run_limits` must be a list of RunLimits, got a RunLimit"),
        ({"tenant": None}, "tenant 'None' must have 1 to 200"),
        ({"tenant": 5}, "tenant '5' must have 1 to 200"),
        ({"queue": 5}, "queue '5' must have 1 to 200"),
        ({"idempotency_key": 5}, "an idempotency key must have 1 to 200"),
        ({"metadata": [("a", 1)]}, "`metadata` must be a mapping, got a list"),
        ({"limits": {"total_tokens_limit": 5}}, "`limits` must be a UsageLimits, got a dict"),
    ],
)
def test_an_option_of_another_type_is_named(options, said):
    found = FoundPipeline(compile_plan(pipeline_of("a"), default_name="p"), "m:p", None)
    with pytest.raises(ConfigurationError, match=said):
        new_run_of(Settings(), found, 1, options)


def test_a_run_id_of_another_type_is_named():
    found = FoundPipeline(compile_plan(pipeline_of("a"), default_name="p"), "m:p", None)
    with pytest.raises(ConfigurationError, match="run id 5 may contain only letters"):
        new_run_of(Settings(), found, 1, {}, run_id=5)


def test_what_is_streamed_is_in_the_settings_of_the_run():
    """The caller's word counts above what the pipeline asks for; messages carry it, so later attempts and child runs have it too."""
    found = FoundPipeline(compile_plan(pipeline_of("a"), default_name="p"), "m:p", None)
    for own, wanted, stream in [("", None, None), ("", True, "all"), ("steps", None, "steps"), ("all", False, None)]:
        new = new_run_of(Settings(), replace(found, stream=own), 1, {"stream": wanted})
        assert Envelope.from_wire(loads(dumps(new.first.to_wire()))).ticket.settings.get("stream") == stream


def test_a_stream_that_is_neither_true_nor_false_is_refused():
    found = FoundPipeline(compile_plan(pipeline_of("a"), default_name="p"), "m:p", None)
    with pytest.raises(ConfigurationError, match="`stream` must be True, False or None, got 'yes'"):
        new_run_of(Settings(), found, 1, {"stream": "yes"})


def test_a_stream_without_redis_is_refused():
    """RabbitMQ alone has no place for it."""
    found = FoundPipeline(compile_plan(pipeline_of("a"), default_name="p"), "m:p", None)
    settings = Settings(database_url="postgresql://x/y", broker_url="amqp://localhost")
    with pytest.raises(ConfigurationError, match=r"(?s)stream=True: m:p cannot be streamed.*result_backend_url"):
        new_run_of(settings, found, 1, {"stream": True})
    assert new_run_of(settings, found, 1, {}).first.ticket.settings == {}
    with_redis = Settings(
        database_url="postgresql://x/y", broker_url="amqp://localhost", result_backend_url="redis://r"
    )
    assert new_run_of(with_redis, found, 1, {"stream": True}).first.ticket.settings == {"stream": "all"}


def test_an_envelope_survives_its_journey():
    """M-005."""
    order = {
        "queue": "mine",
        "priority": 0,
        "tenant": "acme",
        "deadline": 12.5,
        "trace_parent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }
    first = enqueued(context={"n": 1}, **order).first
    assert Envelope.from_wire(loads(dumps(first.to_wire()))) == first


@pytest.mark.parametrize(
    "change",
    [
        {"v": 9},
        {"key": "run:a:b:1"},
        {"task": "os.system"},
        {"number": 2},
        {"input": None},
        {"kind": "resume2", "task": None},
        {"number": "1"},
        {"number": True},
        {"version": "0"},
        {"lanes": ["f"]},
        {"lanes": {"f": "0"}},
        {"queue": 5},
        {"reference": ["os:system"]},
        {"fingerprint": None},
    ],
    ids=str,
)
def test_a_message_that_is_not_itself_is_refused(change):
    wire = enqueued().first.to_wire() | change
    with pytest.raises(SerializationError):
        Envelope.from_wire(wire)


def test_an_envelope_with_a_part_missing_is_refused():
    wire = enqueued().first.to_wire()
    for name in wire.keys() - {"aros", "settings", "limits"}:  # a message of the version before has none
        with pytest.raises(SerializationError):
            Envelope.from_wire({key: value for key, value in wire.items() if key != name})


def test_no_context_is_none():
    """M-023."""
    assert enqueued().first.context is None


def test_context_data_becomes_the_default_context_that_knows_its_run():
    new = enqueued(value="the prompt", context={"topic": "bees"})
    context = context_of(new)
    assert isinstance(context, PipelineContext)
    assert (context.run_id, context.initial_prompt, context.topic) == (new.first.ticket.run, "the prompt", "bees")


def test_a_prompt_that_was_given_stays():
    assert context_of(enqueued(context={"initial_prompt": "mine"})).initial_prompt == "mine"


def test_context_data_becomes_the_pipelines_model():
    assert context_of(enqueued(context={"total": 3}, context_model=Book)) == Book(total=3)
    assert context_of(enqueued(context_model=Book)) == Book()


def test_a_context_that_does_not_fit_names_every_place_and_no_value():
    with pytest.raises(PipelineContextInitializationError) as caught:
        enqueued(context={"total": "hunter2", "note": 3}, context_model=Book)
    assert "does not fit Book: total: " in str(caught.value)
    assert "note: " in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("context", ["text", 3, ["total"], PipelineContext()])
def test_a_context_of_another_kind_is_refused(context):
    with pytest.raises(
        PipelineContextInitializationError,
        match=r"the context (must be a mapping or a model|is a PipelineContext; the pipeline needs a Book)",
    ):
        enqueued(context=context, context_model=Book)


def test_a_context_that_comes_back_as_another_is_refused():
    """M-417."""
    with pytest.raises(SerializationError, match="context: it would change on its way through JSON"):
        enqueued(context={"driven": Odometer(1)})


@pytest.mark.parametrize(("where", "said"), [("value", "input.deep"), ("context", "context.deep")])
def test_what_cannot_travel_is_named_by_its_path(where, said):
    with pytest.raises(SerializationError) as caught:
        enqueued(**{where: {"deep": object()}})
    assert caught.value.path.startswith(said)


NOISE = "".join(chr(33 + number * 7919 % 90) for number in range(4000))


@pytest.mark.parametrize(("inline", "is_kept"), [(100, True), (100_000, False)])
def test_what_is_above_the_inline_limit_is_kept_and_pointed_at(inline, is_kept):
    new = enqueued(value=NOISE, context={"text": NOISE}, inline=inline)
    assert len(new.blobs) == len(new.first.references) == (2 if is_kept else 0)
    whole = new.first.inline({blob.digest: blob for blob in new.blobs})
    assert whole.input == packed(NOISE)


@pytest.mark.parametrize("where", ["value", "context"])
def test_what_is_above_the_limit_is_refused(where):
    given = {"value": "x", "context": {"n": 1}} | {where: {"text": "x" * 5000}}
    value = given.pop("value")
    plan = compile_plan(pipeline_of())
    with pytest.raises(SnapshotTooLarge, match=r"bytes of JSON; at most 1,000 can be sent") as caught:
        new_run(
            plan,
            "m:p",
            value,
            Order("run_1", **given),
            size=SizeLimits(snapshot_inline_bytes=100, snapshot_max_bytes=1000),
            allowed=("*",),
        )
    assert caught.value.path == ("input" if where == "value" else "context")


@pytest.mark.parametrize(
    "order",
    [
        {"priority": -1},
        {"priority": 10},
        {"priority": 2.5},
        {"priority": "1"},
        {"deadline": float("nan")},
        {"deadline": float("inf")},
        {"deadline": 1e300},
        {"run_id": "a b"},
        {"run_id": "a:b"},
        {"run_id": "x" * 81},
        {"run_id": "a\x00"},
        {"idempotency_key": ""},
        {"idempotency_key": "x" * 201},
        {"idempotency_key": "a\x00"},
        {"tenant": "a\x00"},
        {"tenant": "\ud800"},
        {"queue": "a\nb"},
        {"trace_parent": "a\x00"},
        {"trace_parent": ""},
        {"trace_parent": "00-ab-cd-01"},
        {"trace_parent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n"},
        {"trace_parent": "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01"},
        {"trace_parent": "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
        {"trace_parent": "00-00000000000000000000000000000000-b7ad6b7169203331-01"},
        {"trace_parent": "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"},
    ],
)
def test_an_option_that_cannot_be_is_refused(order):
    """M-428: nothing that Postgres or a broker would choke on gets that far."""
    with pytest.raises(ConfigurationError):
        enqueued(**order)


@pytest.mark.parametrize("priority", [None, 0, 9])
def test_a_priority_is_carried(priority):
    assert enqueued(priority=priority).first.ticket.priority == priority


def test_metadata_that_is_no_plain_data_is_refused():
    with pytest.raises(SerializationError, match=r"metadata\.when: object of type type is not plain JSON"):
        enqueued(metadata={"when": object})


def test_the_same_work_has_the_same_digest_whatever_its_run():
    assert enqueued(context={"n": 1}).digest == enqueued(context={"n": 1}, priority=3, metadata={"x": 1}).digest


@pytest.mark.parametrize("change", [{"value": "other"}, {"context": {"n": 2}}, {"context": None}])
def test_other_work_has_another_digest(change):
    assert enqueued(**{"context": {"n": 1}} | change).digest != enqueued(context={"n": 1}).digest
