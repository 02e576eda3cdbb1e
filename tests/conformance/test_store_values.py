"""Values that are stored by digest or fingerprint are read back unchanged."""

from dataclasses import replace

from flujo_client.pipeline.step import Step, StepConfig
from flujo_client.plan.plan import Backoff
from flujo_client.serial import Packed
from tests.support.builders import enqueued, packed, pipeline_of


def test_blobs_come_back_byte_for_byte(world):
    small, large = packed("x"), packed({"text": "long " * 5000})
    world.stores.blobs.store([small, large])
    found = world.stores.blobs.fetch([small.digest, large.digest])
    assert {digest: bytes(blob) for digest, blob in found.items()} == {
        small.digest: bytes(small),
        large.digest: bytes(large),
    }
    assert all(blob.matches(digest) for digest, blob in found.items())


def test_a_missing_blob_is_left_out(world):
    world.stores.blobs.store([packed("x")])
    assert set(world.stores.blobs.fetch([packed("x").digest, packed("y").digest])) == {packed("x").digest}
    assert world.stores.blobs.fetch([]) == {}


def test_a_blob_may_be_kept_twice(world):
    world.stores.blobs.store([packed("x")])
    world.stores.blobs.store([packed("x"), packed("x")])
    assert world.stores.blobs.fetch([packed("x").digest]) == {packed("x").digest: packed("x")}


def test_the_blobs_of_a_new_run_are_recorded_with_it(world):
    new = world.record(enqueued(value="x" * 500, context={"text": "y" * 500}, inline=100))
    found = world.stores.blobs.fetch([blob.digest for blob in new.blobs])
    assert sorted(found) == sorted(blob.digest for blob in new.blobs)
    assert new.first.inline(found).references == ()


def test_a_plan_comes_back_equal(world):
    config = StepConfig(max_retries=4, backoff=Backoff(base_s=0.3, jitter=0.05), timeout_s=1.5, temperature=0.1)
    pipeline = pipeline_of("a", "b") >> Step("ü c", str.upper, config=config, queue="gpu", sink_to="x")
    new = world.record(enqueued(pipeline, context={}))
    assert world.stores.code.plan(new.plan.fingerprint) == new.plan


def test_a_blueprints_text_comes_back_as_it_was(world):
    """ADR 30: the text is what a worker builds the pipeline of, so no character of it may change."""
    text = 'steps:\n- {name: a, uses: "ü\\0\\x85 \u2028"}\n' + "# long\n" * 20_000
    new = world.record(enqueued(replace(pipeline_of(), blueprint=text)))
    found = world.stores.code.plan(new.plan.fingerprint)
    assert (found.blueprint, found.fingerprint) == (text, new.plan.fingerprint)


def test_an_unknown_plan_is_none(world):
    assert world.stores.code.plan("0" * 64) is None


def test_input_and_context_come_back_as_they_were_recorded(world):
    new = world.record(enqueued(value={"k": [1, "é"]}, context={"n": 1}, metadata={"who": "ana"}))
    run = world.run(new.first.ticket.run)
    assert (run.input, run.context) == (new.first.input, new.first.context)
    assert (run.status, run.metadata, run.name) == ("queued", {"who": "ana"}, "shapes")
    assert isinstance(run.input, Packed)
