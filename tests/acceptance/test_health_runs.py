"""The health check in real processes: runs with repairs, a worker, two beats, and the command (SYS-26, M-012, M-186)."""

import json
import signal

import pytest
from click.testing import CliRunner

from flujo_client.cli.main import cli
from flujo_client.config.manager import ConfigManager
from tests.support.fleet import BRISK, Site, wait_until
from tests.support.nursery import nursery
from tests.support.openai_server import OpenAIServer, Said

pytestmark = [pytest.mark.services, pytest.mark.acceptance]


@pytest.fixture(scope="module")
def site(services, tmp_path_factory):
    """A worker that has carried two runs, in each of which each stage of AROS acted once."""
    health = {"every_s": 1, "trend_buckets": 2}
    with (
        OpenAIServer(lambda request: Said(str(request.body["messages"][-1]["content"]), usage=(100, 10))) as model,
        Site(services, tmp_path_factory.mktemp("site"), worker=BRISK, health=health) as site,
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OPENAI_BASE_URL", model.url)
            patch.setenv("OPENAI_API_KEY", "none")
            site.workers(1)
        for _ in range(2):
            assert site.client.enqueue("aros_pipelines:stages", "go").result(timeout=60).success, site.log()
        yield site


@pytest.fixture
def beats(site):
    """Two beats."""
    environment = ConfigManager().child_environment(site.settings)
    processes = [nursery().fork(["beat"], environment, site.folder / "beats.log") for _ in range(2)]
    yield processes
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        process.wait(timeout=60)


@pytest.fixture
def checked(site):
    """Call the command."""

    def call(*arguments, code=0):
        told = CliRunner().invoke(cli, ["dev", "health-check", *arguments], env=site.settings.as_environment())
        assert told.exit_code == code, told.output
        return told

    return call


def reports(site):
    return site.rows("SELECT * FROM flujo_health_reports ORDER BY id")


def test_two_beats_have_one_report_made_for_each_slot(site, beats, checked):
    """M-012, M-188: the schedule has it; a worker makes, stores and tells it; the command shows it, and gives the same by hand."""
    wait_until(lambda: len(reports(site)) >= 3, what=site.log)
    rows = reports(site)
    assert len({row["slot"] for row in rows}) == len(rows)
    report = rows[-1]["report"]
    assert report["stages"] == dict.fromkeys(("extract", "syntactic", "tolerant", "semantic", "custom"), 2)
    assert (report["totals"]["runs"], report["totals"]["per_100_runs"]) == (2, 500.0)
    assert report["agents"]["extract agent"]["coercions"] == 2
    assert report["verdict"] == {"status": "ok", "reasons": []}, site.log()
    assert '"event": "health.checked"' in (site.folder / "workers.log").read_text()
    by_hand = json.loads(checked("--since-hours", "24", "--trend-buckets", "2", "--json").stdout)
    told = ("totals", "stages", "steps", "models", "agents", "transforms", "step_stages", "recommendations")
    assert {key: by_hand[key] for key in told} == {key: report[key] for key in told}
    assert json.loads(checked("--stored", "--json").stdout)["version"] == "1"


def test_a_healthy_machine_gives_no_reason(checked):
    """M-188: workers live, sweeps take place, nothing waits."""
    told = checked("--since-hours", "24")
    assert told.stdout.startswith("health check ok, 2 runs that began in the last 24 h")


def test_a_worker_that_was_killed_is_found(site, checked):
    """And the exit code says so to a script. The last test here: no one works after it."""
    site.dismiss()
    site.rows("UPDATE flujo_workers SET lease_until = lease_until - interval '1 min' RETURNING id")
    reasons = json.loads(checked("--json", code=1).stdout)["verdict"]["reasons"]
    assert [reason["code"] for reason in reasons] == ["dead_workers"]
