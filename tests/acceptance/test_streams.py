"""Streams of runs: what a real worker writes to Redis while a model answers in pieces, whatever becomes of it."""

import pytest

from flujo_client.contract.stream import keys_of, read_entry
from tests.acceptance.stream_pipelines import WORDS
from tests.support.fleet import BRISK, PATIENCE_S, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.site(worker=BRISK)]
STORY = "".join(WORDS)


def entries(site, run):
    """The entries of a run's stream, as they are in Redis."""
    key, _ = keys_of("", run.id)
    return [read_entry(entry_id, fields) for entry_id, fields in site.redis.xrange(key)]


def told(events):
    """The text that a reader has at the end: what was withdrawn does not count."""
    texts = {}
    for event in events:
        place = event.address, event.step
        texts[place] = "" if event.kind == "withdrawn" else texts.get(place, "") + event.text
    return "".join(texts.values())


def enqueue(site, name, value="", **options):
    return site.client.enqueue(f"stream_pipelines:{name}", value, **options)


def ended(site, run, kind="step_end"):
    """Wait for the run's end, and for the entry of this kind that the worker writes after it."""
    result = run.result(timeout=PATIENCE_S)
    wait_until(lambda: entries(site, run)[-1:] and entries(site, run)[-1].kind == kind, what=site.log)
    return result, entries(site, run)


def assert_gapless(events):
    seqs = [int(event.cursor.partition("-")[2]) for event in events]
    assert seqs == list(range(1, len(seqs) + 1))


def test_a_model_that_answers_in_pieces_is_streamed(site):
    site.standing()
    run = enqueue(site, "story")
    result, events = ended(site, run)
    assert (result.output, told(events)) == (STORY, STORY)
    assert [events[0].kind, events[-1].kind] == ["step_start", "step_end"]
    assert sum(event.kind == "token" for event in events) > 3
    assert_gapless(events)
