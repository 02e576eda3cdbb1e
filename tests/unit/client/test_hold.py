"""What is said to hold a run, and what would move it."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from flujo_client.api.hold import hold_of
from flujo_client.config.manager import Settings
from flujo_client.contract.records import HeldRecord, RunRecord, WorkerRecord

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WAITS = HeldRecord("run_1", queue="gpu")


def run(status="queued"):
    return RunRecord("run_1", "shop:p", "f", "p", "1", status, NOW)


def worker(*queues, slots=4, is_live=True, has_said=True):
    return WorkerRecord("w", "host", 1, "1", slots, NOW, is_live, queues if has_said else None)


@pytest.mark.parametrize(
    ("workers", "why", "way_out"),
    [
        ([], "no worker is running", "`flujo worker`"),
        ([worker("gpu", is_live=False)], "no worker is running", "`flujo up`"),
        (
            [worker("flujo.control", "flujo.attempts"), worker("shop")],
            "no worker consumes its queue 'gpu'; the live workers consume flujo.attempts, flujo.control, shop",
            "flujo worker -Q gpu",
        ),
        ([worker("gpu", slots=0)], "no worker consumes its queue 'gpu'", "flujo worker -Q gpu"),
    ],
    ids=["none", "only dead ones", "other queues", "one in quarantine"],
)
def test_a_queue_that_no_one_consumes_holds_a_run(workers, why, way_out):
    found = hold_of(run(), [WAITS], workers)
    assert why in found.why
    assert way_out in found.way_out


def test_a_process_without_settings_says_which_services_it_uses(tmp_path):
    """A run that is enqueued in one process and a worker of another one may not be at the same services."""
    settings = Settings(embedded_dir=tmp_path).with_services("postgresql://me:secret@h/db", "redis://h/0")
    found = hold_of(run(), [WAITS], [], settings.services_named)
    folder = f"the embedded services in {tmp_path}, which are used because no database_url is set here"
    assert found.why == f"no worker is running for {folder}"
    assert "give this process their FLUJO_DATABASE_URL and FLUJO_BROKER_URL" in found.way_out


def test_a_process_with_settings_names_its_database():
    settings = Settings(database_url="postgresql://me:secret@h/db", broker_url="redis://h/0")
    assert hold_of(run(), [WAITS], [], settings.services_named).why == (
        "no worker is running for the services at postgresql://me:***@h/db"
    )


@pytest.mark.parametrize("consumer", [worker("shop", "gpu"), worker(has_said=False)], ids=["known", "has not said"])
def test_a_run_whose_queue_is_consumed_is_not_held(consumer):
    assert hold_of(run(), [WAITS], [consumer]) is None


def test_a_parked_run_says_why_and_so_does_one_whose_child_run_is_parked():
    parked = HeldRecord("run_1", reason="no module named 'shop'")
    assert hold_of(run("parked"), [parked], []).why == "it is parked: no module named 'shop'"
    child = HeldRecord("run_1.ab", reason="no module named 'shop'")
    assert hold_of(run("running"), [child], []).why == "its child run run_1.ab is parked: no module named 'shop'"


def test_a_paused_run_waits_for_a_person():
    assert "flujo approvals list --run run_1" in hold_of(run("paused"), [], []).way_out


def test_a_run_at_work_is_not_held():
    assert hold_of(run("running"), [], []) is None


def test_a_run_that_was_not_admitted_says_where_it_waits():
    waiting = replace(run(), waits_for="limit 'crm': 5 of 5 places are taken")
    assert hold_of(waiting, [WAITS], [worker("gpu")]).why == f"it waits for its admission, at {waiting.waits_for}"
    assert "no worker" in hold_of(waiting, [WAITS], []).why
