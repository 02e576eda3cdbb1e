"""Workers fire schedules: each slot has one run, whichever of them is killed."""

import sys
from datetime import timedelta
from types import ModuleType

import pytest

from flujo_client import Pipeline, Schedule, Step
from flujo_client.blueprint.load import schedules_of
from flujo_client.contract.schedules import run_id_of
from tests.support.fleet import assert_merged_once, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.usefixtures("own_workers")]

THREE = "acceptance_pipelines:three"


def runs_of(site, name):
    return site.rows(
        "SELECT id, status FROM flujo_runs WHERE metadata ->> 'schedule' = %(name)s ORDER BY id", name=name
    )


def schedules(site):
    return {each.name: each for each in site.client.schedules()}


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
    site.client.remove_schedule("beat")
    found = [each["id"] for each in runs_of(site, "beat")]
    assert found == [run_id_of("beat", added.slot_at + timedelta(seconds=n)) for n in range(len(found))]
    for run in found:
        assert_merged_once(site, site.client.get_run(run), ["first", "second", "third"])


BLUEPRINT = """
version: "0.1"
name: written
steps:
  - {name: echo, agent: "acceptance_pipelines:echo"}
schedules:
  written: {every_s: 1, input: written}
"""


@pytest.mark.large
def test_a_worker_fires_blueprints_skips_what_overlaps_and_shows_what_it_cannot_load(site, tmp_path, monkeypatch):
    """And a schedule that fails delays no other."""
    file = tmp_path / "written.yaml"
    file.write_text(BLUEPRINT)
    only_here = ModuleType("only_here")
    only_here.pipeline = Pipeline([Step("echo", echo)])
    monkeypatch.setitem(sys.modules, "only_here", only_here)
    [written] = schedules_of(str(file), allowed=site.settings.allowed_imports)
    broken = Schedule(name="broken", pipeline="only_here:pipeline", every_s=1)
    long = Schedule(name="long", pipeline="acceptance_pipelines:gated", input=[], every_s=1)
    for each in (broken, long, written):
        site.client.add_schedule(each)
    site.workers()
    wait_until(lambda: len(runs_of(site, "written")) > 2, what=site.log)
    wait_until(lambda: all(each.last_error or each.last_run for each in site.client.schedules()), what=site.log)
    rows = schedules(site)
    assert "no module named 'only_here'" in rows["broken"].last_error
    [under_way] = runs_of(site, "long")
    wait_until(lambda: schedules(site)["long"].last_slot > rows["long"].last_slot, what=site.log)
    assert schedules(site)["long"].last_run == under_way["id"]
    assert len(runs_of(site, "long")) == 1
    done = site.client.get_run(runs_of(site, "written")[0]["id"])
    assert done.result(timeout=60).output == "written"
    for each in rows:
        site.client.remove_schedule(each)
    site.open_gate(under_way["id"])
    assert site.client.get_run(under_way["id"]).result(timeout=60).run_status == "succeeded"


def echo(data):
    return data
