"""What holds a run, and what would move it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from flujo_client.api import bulk
from flujo_client.api.explanations import hold_of
from flujo_client.config.manager import Settings
from flujo_client.contract.records import RunRecord
from flujo_client.explain.sentence import Part, Sentence

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def run(status="queued"):
    return RunRecord("run_1", "shop:p", "f", "p", "1", status, NOW)


def sentence(cause, tone="wait", text="Waits at pay.", **rest):
    return Sentence(cause, tone, (Part("text", text),), **rest)


NO_WORKERS = sentence(
    "no workers", "stuck", "Waits at pay: no worker is alive.", fix="Start one: `flujo worker`.", key="k"
)


def test_its_sentence_says_why_and_its_fix_what_moves_it():
    found = hold_of(run(), NO_WORKERS)
    assert str(found) == "waits at pay: no worker is alive\n  → Start one: `flujo worker`."
    assert (found.key, found.needs_worker) == ("k", True)
    limit = hold_of(run(), sentence("limit"))
    assert (limit.way_out, limit.needs_worker) == ("`flujo lens trace run_1` shows its progress", False)


def test_a_process_without_settings_says_which_services_it_uses(tmp_path):
    """A run that is enqueued in one process and a worker of another one may not be at the same services."""
    settings = Settings(embedded_dir=tmp_path).with_services("postgresql://me:secret@h/db", "redis://h/0")
    found = hold_of(run(), NO_WORKERS, settings.services_named)
    folder = f"the embedded services in {tmp_path}, which are used because no database_url is set here"
    assert found.why == f"waits at pay: no worker is alive for {folder}"
    assert "give this process their FLUJO_DATABASE_URL and FLUJO_BROKER_URL" in found.way_out


def test_a_process_with_settings_names_its_database():
    settings = Settings(database_url="postgresql://me:secret@h/db", broker_url="redis://h/0")
    found = hold_of(run(), NO_WORKERS, settings.services_named)
    assert found.why == "waits at pay: no worker is alive for the services at postgresql://me:***@h/db"


@pytest.mark.parametrize(
    "seen",
    [sentence("queued"), sentence("lane"), sentence("lost"), sentence("running", "run"), sentence("fan-out", "run")],
)
def test_a_run_that_a_worker_continues_is_not_held(seen):
    assert hold_of(run("running"), seen) is None


@pytest.mark.parametrize("cause", ["backoff", "delayed"])
def test_a_short_wait_before_the_next_try_is_ordinary_work(cause):
    seen = sentence(cause, since=NOW, until=NOW + timedelta(seconds=bulk.GRACE_S))
    assert hold_of(run(), seen) is None, "the first message of a chunk is on its way"
    assert hold_of(run(), replace(seen, until=NOW + timedelta(seconds=6))) is not None


def test_a_paused_run_waits_for_a_person_and_one_with_other_branches_at_work_does_not():
    assert "flujo approvals list --run run_1" in hold_of(run("paused"), sentence("person", "person")).way_out
    assert hold_of(run("running"), sentence("person", "person")) is None


def test_a_run_that_was_not_admitted_says_where_it_waits():
    text = "Not begun: the limit crm has 5 of 5 places taken; 2 ahead of it."
    assert hold_of(run(), sentence("admission", text=text)).why == text[:1].lower() + text[1:-1]
