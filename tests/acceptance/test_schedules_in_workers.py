"""Workers fire schedules: each slot has one run, whichever of them is killed."""

from datetime import timedelta

import pytest

from flujo_client import Schedule
from flujo_client.contract.schedules import run_id_of
from tests.support.fleet import assert_merged_once, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.usefixtures("own_workers")]

THREE = "acceptance_pipelines:three"


def runs_of(site, name):
    return site.rows(
        "SELECT id, status FROM flujo_runs WHERE metadata ->> 'schedule' = %(name)s ORDER BY id", name=name
    )


@pytest.mark.large
def test_a_worker_killed_as_it_has_fired_a_slot_costs_none_and_doubles_none(site):
    marker = site.folder / "fired"
    added = site.client.add_schedule(
        Schedule(name="beat", pipeline=THREE, input=[], every_s=1, overlap="allow", catch_up="all")
    )
    site.workers(failpoints=f"schedule_fired:kill:{marker}")
    wait_until(marker.exists, what=site.log)
    site.workers()
    wait_until(lambda: len(runs_of(site, "beat")) > 5 and site.client.schedules()[0].last_slot, what=site.log)
    site.client.pause_schedule("beat")
    found = [each["id"] for each in runs_of(site, "beat")]
    assert found == [run_id_of("beat", added.slot_at + timedelta(seconds=n)) for n in range(len(found))]
    for run in found:
        assert_merged_once(site, site.client.get_run(run), ["first", "second", "third"])
