"""A provider's outage over real processes: two workers of one slot each, one breaker for a model, in Redis (SYS-19, M-463)."""

import json
import time
from collections import Counter

import pytest
from click.testing import CliRunner

from flujo_client.cli.main import cli
from flujo_client.gateway import operator_requests
from flujo_worker.guards.live import EVERY_S
from tests.support.breadth import large
from tests.support.fleet import Site, wait_until
from tests.support.openai_server import OpenAIServer, Said

pytestmark = [pytest.mark.services, pytest.mark.acceptance]

FAILURES, WORKERS, RECOVERY_S = 4, 2, 1.0
ONE_SLOT = {"concurrency": 1, "sweep_s": 0.3}
QUICK = {"base_s": 0.05, "cap_s": 0.1, "jitter": 0.0}
BREAKERS = {"failures": FAILURES, "recovery_s": RECOVERY_S, "half_open_calls": 1}
NAMES = ("flujo.breaker.opened", "flujo.breaker.half_open", "flujo.breaker.closed", "flujo.breaker.waiting")


class Provider:
    """Models that are down until they are well; who asked which is counted. One refuses every tenth call."""

    def __init__(self):
        self.well, self.asked, self.refused = {"calm-model", "busy-model"}, Counter(), Counter()

    def __call__(self, request):
        model = request.body["model"]
        self.asked[model] += 1
        if model == "busy-model" and self.asked[model] % 10 == 0:
            self.refused[str(request.body["messages"])] += 1
            return Said("slow down", status=429, headers=(("retry-after", "1"),))
        time.sleep(0.03)
        return Said("well", usage=(10, 1)) if model in self.well else Said("down", status=500)


@pytest.fixture(scope="module")
def provider():
    return Provider()


@pytest.fixture(scope="module")
def site(services, tmp_path_factory, provider):
    folder = tmp_path_factory.mktemp("site")
    with (
        OpenAIServer(provider) as server,
        Site(services, folder, worker=ONE_SLOT, breakers=BREAKERS, retry=QUICK) as site,
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OPENAI_BASE_URL", server.url)
            patch.setenv("OPENAI_API_KEY", "none")
            site.workers(WORKERS)
        yield site


def enqueue(site, name, **options):
    return site.client.enqueue(f"breaker_pipelines:{name}", "hello", **options)


def breaker_events(site, model):
    """What was told of a model's breaker, over all runs, in order."""
    found = site.rows(
        "SELECT name FROM flujo_events WHERE name = ANY(%(names)s) AND data->>'model' LIKE %(model)s ORDER BY id",
        names=list(NAMES),
        model=f"%{model}",
    )
    return [row["name"].removeprefix("flujo.breaker.") for row in found]


def statuses(site, runs):
    rows = site.rows("SELECT status FROM flujo_attempts WHERE run_id = ANY(%(runs)s)", runs=[run.id for run in runs])
    return Counter(row["status"] for row in rows)


def test_an_outage_is_waited_out_by_all_workers_together(site, provider):
    """SYS-19, M-463: after the threshold only probes reach the provider, whoever works; what waits holds no slot and loses no number."""
    model = "shared-model"
    runs = [enqueue(site, "shared") for _ in range(8)]
    wait_until(lambda: breaker_events(site, model).count("opened") >= 2, 60, what=site.log)  # a probe has failed

    turns = Counter(breaker_events(site, model))
    asked = provider.asked[model]
    assert asked <= FAILURES + (WORKERS - 1) + turns["half_open"] + 1

    open_now = {each.model: each.state for each in site.client.ask(operator_requests.open_breakers())}
    assert open_now[f"openai:{model}"] in ("opened", "half_open")

    assert enqueue(site, "plain").result(120).output == "hello", site.log()
    assert "closed" not in breaker_events(site, model)
    wait_until(lambda: not statuses(site, runs)["running"], what=site.log)  # but for a probe now and then

    provider.well.add(model)
    assert [run.result(60).output for run in runs] == ["well"] * len(runs), site.log()
    assert f"openai:{model}" not in [each.model for each in site.client.ask(operator_requests.open_breakers())]
    ended = statuses(site, runs)
    assert ended["succeeded"] == len(runs)
    assert sum(ended.values()) == provider.asked[model]  # each attempt is a call, each wait is none
    for run in runs:
        numbers = [row["number"] for row in site.attempts(run.id)]
        assert numbers == list(range(1, len(numbers) + 1))
    turns = Counter(breaker_events(site, model))
    assert (turns["opened"], turns["closed"]) == (turns["half_open"], 1)
    assert turns["waiting"] >= len(runs) - FAILURES


def test_branches_that_waited_are_joined_by_their_chord(site, provider):
    """A delivery that put its attempt off is no part of the chord; the one that closes the branch is."""
    model = "fan-model"
    run = enqueue(site, "fan")
    wait_until(lambda: "waiting" in breaker_events(site, model), what=site.log)
    provider.well.add(model)
    assert run.result(60).output == {f"b{n}": "well" for n in range(4)}, site.log()
    assert [event["data"]["by"] for event in site.events(run.id, "join.rung")] == ["chord"]


def test_a_run_that_waits_can_be_cancelled(site):
    run = enqueue(site, "refused")
    wait_until(lambda: "waiting" in breaker_events(site, "refused-model"), what=site.log)
    run.cancel()
    assert run.result(120).run_status == "cancelled"
    assert set(statuses(site, [run])) == {"failed", "cancelled"}


@pytest.mark.parametrize(("act", "pipeline"), [("close", "closed"), large("disable", "disabled")])
def test_an_operator_relieves_waiting_runs(site, provider, act, pipeline):
    """C-48: workers learn of a change within a second or two, and what waits asks again."""

    def flujo(*arguments):
        told = CliRunner().invoke(cli, ["breakers", *arguments], env=site.settings.as_environment())
        assert told.exit_code == 0, told.output
        return told.stdout

    model = f"{pipeline}-model"
    flujo("set", f"openai:{model}", "recovery_s=600")
    time.sleep(EVERY_S)  # what is read within a second
    runs = [enqueue(site, pipeline) for _ in range(4)]
    wait_until(lambda: breaker_events(site, model).count("waiting") == len(runs), what=site.log)
    [waiting] = [each for each in json.loads(flujo("list", "--json")) if each["model"] == f"openai:{model}"]
    assert (waiting["state"], waiting["waiting"], waiting["next_s"] > 500) == ("opened", len(runs), True)
    provider.well.add(model)
    began = time.monotonic()
    flujo(act, f"openai:{model}")
    assert [run.result(60).output for run in runs] == ["well"] * len(runs), site.log()
    assert time.monotonic() - began < 20
    assert f"openai:{model}" not in [each.model for each in site.client.ask(operator_requests.open_breakers())]


@pytest.mark.parametrize("number", [40, pytest.param(120, marks=pytest.mark.large)])
def test_refused_calls_delay_themselves_and_no_one_else(site, provider, number):
    """C-48: every tenth call is refused with `Retry-After: 1`. A second try counts: other tests may begin in the middle of one."""

    def seconds(name):
        began = time.monotonic()
        runs = site.client.enqueue_many(f"breaker_pipelines:{name}", [f"question {n}" for n in range(number)])
        assert {run.result(120).output for run in runs} == {"well"}
        return time.monotonic() - began

    def excess_s():
        """For how many seconds more than is allowed the calls were disturbed."""
        provider.refused.clear()
        before, disturbed, after = (seconds(name) for name in ("calm", "busy", "calm"))
        assert sum(provider.refused.values()) >= number // 10
        return disturbed - 1.5 * max(before, after) - max(provider.refused.values()) * (1.0 + RECOVERY_S)

    assert (first := excess_s()) <= 0 or excess_s() <= 0, first
    assert breaker_events(site, "busy-model") == []
