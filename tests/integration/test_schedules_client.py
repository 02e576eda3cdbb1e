"""Schedules as clients add, change and list them, in Python, on the command line and in a blueprint; no worker fires them here (ADR 60)."""

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from flujo_client import AsyncFlujoClient, Pipeline, RunLimit, Schedule, Step, UsageLimits
from flujo_client.cli.main import cli
from flujo_client.errors import BlueprintError, ClientError, ConfigurationError, PipelineError, SerializationError
from tests.support.fleet import Site

pytestmark = pytest.mark.services


def echo(data):
    return data


fine = Pipeline([Step("echo", echo)])
HERE = "tests.integration.test_schedules_client:fine"
WEEKLY = """
version: "0.1"
name: weekly
steps:
  - {name: echo, agent: "tests.integration.test_schedules_client:echo"}
schedules:
  monday: {cron: "0 6 * * MON", zone: Europe/Berlin, input: {region: emea}, until: 2099-01-01T00:00:00Z, options: {priority: 2}}
  often: {every_s: 900, jitter_s: 60, overlap: queue, catch_up: all, tenant: acme}
"""


@pytest.fixture(scope="module")
def site(services, tmp_path_factory):
    with Site(services, tmp_path_factory.mktemp("site"), worker={"sweep_s": 2.0}) as site:
        yield site


@pytest.fixture
def client(site):
    yield site.client
    for each in site.client.schedules():
        site.client.remove_schedule(each.name)


@pytest.fixture
def flujo(site):
    """Call a command; what it printed."""

    def call(*arguments, code=0):
        told = CliRunner().invoke(cli, ["schedules", *arguments], env=site.settings.as_environment())
        assert told.exit_code == code, told.output
        return told.stdout if code == 0 else told.stderr

    return call


def schedule(**given):
    return Schedule(**{"name": "hourly", "pipeline": fine, "every_s": 3600} | given)


def test_a_schedule_is_added_replaced_paused_resumed_and_removed(client):
    added = client.add_schedule(schedule())
    assert added.slot_at.timestamp() % 3600 == 0
    assert [at - added.slot_at for at in added.upcoming(3)] == [timedelta(hours=n) for n in range(3)]
    client.pause_schedule("hourly")
    replaced = client.add_schedule(schedule(tenant="acme", overlap="queue"))
    assert (replaced.is_paused, replaced.upcoming(3), replaced.slot_at) == (True, [], added.slot_at)
    client.resume_schedule("hourly")
    [resumed] = client.schedules()
    assert (resumed.is_paused, resumed.tenant, resumed.overlap) == (False, "acme", "queue")
    assert client.add_schedule(schedule(cron="0 0 29 2 *", every_s=None)).slot_at != added.slot_at
    client.remove_schedule("hourly")
    assert client.schedules() == []


def test_run_now_enqueues_a_run_with_what_the_schedule_says(client):
    """Its singleton is that of the schedule: the second one finds the first under way."""
    limits = UsageLimits(total_tokens_limit=9)
    client.add_schedule(
        schedule(input={"a": (1, 2)}, tenant="acme", options={"metadata": {"for": "ana"}, "limits": limits})
    )
    run = client.run_schedule("hourly")
    record = run.record()
    assert (record.tenant, record.metadata) == ("acme", {"for": "ana", "schedule": "hourly"})
    assert (client.run_schedule("hourly").id, run.is_new) == (run.id, True)


@pytest.mark.parametrize(
    ("overlap", "first", "waits"),
    [("queue", "queued", True), ("cancel_previous", "cancelled", True), ("allow", "queued", False)],
)
def test_the_overlap_of_a_schedule_is_that_of_its_runs(client, overlap, first, waits):
    client.add_schedule(schedule(overlap=overlap, pipeline=HERE, options={"run_limits": [RunLimit("crm", 9)]}))
    one, other = client.run_schedule("hourly"), client.run_schedule("hourly")
    assert other.is_new
    assert (one.record().replaced_by == other.id) is (first == "cancelled")
    assert (other.record().waits_for is not None) is waits


def test_the_async_client_does_the_same(site, client):
    async def use():
        async with AsyncFlujoClient(site.settings) as other:
            await other.add_schedule(schedule(overlap="allow"))
            await other.pause_schedule("hourly")
            assert [each.is_paused for each in await other.schedules()] == [True]
            await other.resume_schedule("hourly")
            assert (await other.run_schedule("hourly")).is_new
            await other.remove_schedule("hourly")
            assert await other.schedules() == []

    asyncio.run(use())


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (
            {"pipeline": "tests.integration.nowhere:pipeline"},
            PipelineError,
            "no module named 'tests.integration.nowhere'",
        ),
        ({"pipeline": Pipeline([Step("s", None)])}, ConfigurationError, "."),
        ({"input": object()}, SerializationError, "object"),
        ({"every_s": 1}, ConfigurationError, "schedule 'hourly': every_s is 1, but workers look only every 2 s"),
        ({"until": datetime.now(UTC) + timedelta(seconds=1)}, ConfigurationError, "schedule 'hourly' would never fire"),
        ({"options": {"priority": 77}}, ConfigurationError, "priority 77"),
    ],
)
def test_what_cannot_be_is_refused_as_it_is_added(client, given, error, said):
    with pytest.raises(error, match=said):
        client.add_schedule(schedule(**given))
    assert client.schedules() == []


@pytest.mark.parametrize("act", ["pause_schedule", "resume_schedule", "remove_schedule", "run_schedule"])
def test_an_unknown_schedule_is_named(client, act):
    client.add_schedule(schedule())
    with pytest.raises(ClientError, match="no schedule 'hourli'") as refused:
        getattr(client, act)("hourli")
    assert (refused.value.suggestion, refused.value.error_code) == ("did you mean 'hourly'?", "UNKNOWN_SCHEDULE")


def test_the_command_adds_lists_and_changes(client, flujo):
    shown = json.loads(
        flujo(
            "add", "nightly", HERE, "--input-json", "[1]", "--cron", "30 2 * * *", "--zone", "Europe/Berlin", "--json"
        )
    )
    assert [(each["name"], each["cron"], each["zone"], len(each["next"])) for each in shown] == [
        ("nightly", "30 2 * * *", "Europe/Berlin", 3)
    ]
    assert all(each.split("T")[1].startswith("02:30:00") for each in shown[0]["next"])
    assert (
        "nightly: is paused"
        in CliRunner().invoke(cli, ["schedules", "pause", "nightly"], env=client.settings.as_environment()).output
    )
    assert json.loads(flujo("list", "--json"))[0]["next"] == []
    flujo("resume", "nightly")
    assert "30 2 * * * Europe/Berlin" in flujo("list")
    assert client.get_run(flujo("run-now", "nightly").strip()).record().metadata == {"schedule": "nightly"}
    flujo("remove", "nightly")
    assert json.loads(flujo("list", "--json")) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["n", HERE], "give either `cron` or `every_s`"),
        (["n"], "give a name and a pipeline"),
        (["n", HERE, "--cron", "0 0 30 2 *"], "never fires"),
        (["n", HERE, "--every", "60", "--until", "soon"], "must be a time such as"),
    ],
)
def test_wrong_use_of_the_command_is_refused(client, flujo, arguments, said):
    assert said in flujo("add", *arguments, code=2)


def test_the_schedules_of_a_blueprint_are_added_and_no_part_of_it(client, flujo, tmp_path):
    file = tmp_path / "weekly.yaml"
    file.write_text(WEEKLY)
    flujo("add", str(file))
    monday, often = client.schedules()
    assert re.findall(r"^(\w+) +weekly +", flujo("list"), re.MULTILINE) == ["monday", "often"]
    assert [each["pipeline"] for each in json.loads(flujo("list", "--json"))] == ["weekly", "weekly"]
    assert (monday.timing.cron, monday.timing.zone, often.timing.every_s) == ("0 6 * * MON", "Europe/Berlin", 900)
    assert (often.overlap, often.catch_up, often.tenant) == ("queue", "all", "acme")
    run = client.run_schedule("monday")
    pipeline = Pipeline.from_yaml_file(file, allowed=client.settings.allowed_imports)
    assert "monday" not in pipeline.blueprint
    assert (run.record().reference, run.record().name) == (monday.reference, "weekly")
    file.write_text(WEEKLY.replace("0 6", "0 7"))
    assert Pipeline.from_yaml_file(file, allowed=client.settings.allowed_imports).blueprint == pipeline.blueprint


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('"0 6 * * MON"', '"0 0 30 2 *"'), "never fires"),
        (("Europe/Berlin", "Europe/Atlantis"), "zone 'Europe/Atlantis' does not exist"),
        (("2099-01-01T00:00:00Z", "soon"), "soon"),
        (("every_s: 900, ", ""), "needs one of cron, every_s"),
        (("overlap: queue", "overlap: wait"), "'wait' is not known"),
        (("jitter_s: 60", "jitter_s: 1000"), "less than the 900 s"),
    ],
)
def test_a_wrong_schedule_is_a_finding_of_its_blueprint(tmp_path, change, said):
    file = tmp_path / "weekly.yaml"
    file.write_text(WEEKLY.replace(*change))
    with pytest.raises(BlueprintError, match=said):
        Pipeline.from_yaml_file(file, allowed=["tests"])
