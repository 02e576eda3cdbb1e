"""The dashboards and alerts of `deploy/grafana`: a real Prometheus finds data behind every panel, and fires every alert.

Work is real where a fleet does it in seconds: runs that succeed, fail, retry, ask a person, and repair a model's output. What takes hours, or
breaks what the test needs, is written into the rows that the metrics are read from.
"""

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
import yaml
from test_metrics import flujo_metrics, free_port

from flujo_client.config.manager import Settings
from tests.support.fleet import BRISK, Site, wait_until
from tests.support.openai_server import OpenAIServer, Said

pytestmark = [pytest.mark.services, pytest.mark.acceptance, pytest.mark.large, pytest.mark.timeout(280)]
GRAFANA = Path(__file__).parents[2] / "deploy/grafana"
RULES = yaml.safe_load((GRAFANA / "alerts.yml").read_text())["groups"][0]["rules"]
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus is installed")

DONE_TO_THE_FLEET = """
INSERT INTO flujo_events (name, data) SELECT 'worker.lacks_key', jsonb_build_object('worker', id, 'keys', '["signing_keys.a"]'::jsonb) FROM flujo_workers;
INSERT INTO flujo_events (name, data) VALUES ('flujo.breaker.opened', '{"model": "openai:gpt-5"}'), ('events.dropped', '{"count": 3}');
INSERT INTO flujo_model_guards (guard, model, from_file) VALUES ('rate', 'openai:gpt-5', '{"requests_per_minute": 60}');
INSERT INTO flujo_budgets (scope, limit_usd, settled_usd) VALUES ('tenant:acme:' || to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD'), 10, 9);
UPDATE flujo_attempts SET created_at = now() - interval '2 days' WHERE status = 'paused';
INSERT INTO flujo_tallies VALUES ('flujo_schedule_to_start_seconds_bucket', '{"queue_name": "flujo.attempts", "le": "300"}', 90),
    ('flujo_leases_lost_total', '{"pipeline": "alert"}', 0), ('flujo_outputs_refused_total', '{"pipeline": "alert"}', 0),
    ('flujo_attempts_total', '{"pipeline": "alert", "queue_name": "q", "outcome": "failed"}', 0);
"""
AND_LATER = 'UPDATE flujo_tallies SET value = 9 WHERE labels @> \'{"pipeline": "alert"}\''
DONE_TO_AN_IDLE_FLEET = """
UPDATE flujo_attempts SET created_at = now() - interval '1 h', available_at = now() - interval '1 h', status = 'ready', fence = 1;
UPDATE flujo_attempts SET status = 'queued' WHERE run_id = %(queued)s;
UPDATE flujo_attempts SET available_at = now() + interval '1 h', waits_for = 'rate openai:gpt-5', waits_since = now() - interval '1 h' WHERE run_id = %(rate)s;
UPDATE flujo_runs SET status = 'parked' WHERE id = %(parked)s;
UPDATE flujo_runs SET cancel_requested_at = now() - interval '1 h' WHERE id = %(stuck)s;
INSERT INTO flujo_waiting_runs (run_id, key, gate, flow, most, priority) SELECT run_id, key, 'crm', '', 1, 0 FROM flujo_attempts WHERE run_id = %(waiting)s
"""
A_WORKER_THAT_DOES_NOT_SWEEP = """
INSERT INTO flujo_workers (id, host, pid, build, slots, lease_until, started_at) VALUES ('w', 'h', 1, '1', 1, now() + interval '1 h', now() - interval '1 h');
UPDATE flujo_sweeps SET swept_at = now() - interval '1 h'
"""


class Prometheus:
    """A real one, which scrapes every second or two, and whose alerts wait for nothing."""

    def __init__(self, folder, targets, slow):
        rules = [{name: value for name, value in rule.items() if name != "for"} for rule in RULES]
        for rule in rules:  # a transaction that is as old cannot be had in a test
            rule["expr"] = rule["expr"].replace("seconds > 3600", "seconds > 1")
        scrapes = [
            {
                "job_name": "flujo",
                "scrape_interval": "2s",
                "scrape_timeout": "2s",
                "static_configs": [{"targets": targets}],
            },
            {"job_name": "slow", "scrape_interval": "10s", "static_configs": [{"targets": slow}]},
        ]
        config = {"global": {"evaluation_interval": "1s"}, "rule_files": ["rules.yml"], "scrape_configs": scrapes}
        (folder / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "flujo", "rules": rules}]}))
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.port, self.fired = free_port(), set()
        arguments = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        with (folder / "prometheus.log").open("wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", *arguments, f"--web.listen-address=127.0.0.1:{self.port}"], stdout=log, stderr=log
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def ask(self, path, **query):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.loads(answer.read())["data"]
        except ConnectionError:
            return {}
        except urllib.error.URLError:
            return {}

    def has_data(self, expression):
        found = self.ask("query", query=expression.replace("$__rate_interval", "1m")).get("result", [])
        return any(each["value"][1] != "NaN" for each in found)

    def not_fired(self):
        """The alerts that have not fired since the beginning."""
        alerts = self.ask("alerts").get("alerts", [])
        self.fired |= {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}
        return {rule["alert"] for rule in RULES} - self.fired


def panels(name):
    return [
        (panel["title"], target)
        for panel in json.loads((GRAFANA / name).read_text())["panels"]
        for target in panel["targets"]
    ]


@pytest.fixture(scope="module")
def model():
    with OpenAIServer(lambda request: Said(str(request.body["messages"][-1]["content"]), usage=(100, 10))) as model:
        yield model


@pytest.fixture(scope="module")
def site(services, tmp_path_factory, model):
    """A fleet that has worked, and has work before it."""
    folder, settings = tmp_path_factory.mktemp("fleet"), {"metrics": {"port": free_port(), "tenants": True}}
    with Site(services, folder, worker=BRISK, **settings) as site:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OPENAI_BASE_URL", model.url)
            patch.setenv("OPENAI_API_KEY", "none")
            site.workers(1)
        work(site)
        yield site


def work(site):
    for name in ("three", "stubborn", "giving_up"):
        site.enqueue(name).result(timeout=60)
    assert site.client.enqueue("aros_pipelines:stages", "go").result(timeout=60).success, site.log()
    asked = site.client.enqueue("human_pipelines:approval", "go")
    wait_until(asked.approvals, what=site.log)
    for _ in range(2):
        site.client.enqueue("limit_pipelines:limited", [])
    wait_until(lambda: site.rows("SELECT 1 AS one FROM flujo_permits WHERE fence IS NULL"), what=site.log)


@needs_prometheus
def test_prometheus_finds_data_behind_every_panel_and_fires_every_alert(services, site, tmp_path):
    (idle_folder := tmp_path / "idle").mkdir()
    nowhere = Settings(database_url="postgresql://u@127.0.0.1:1/x", broker_url="redis://127.0.0.1:1/0")
    with ExitStack() as stack:
        idle = stack.enter_context(Site(services, idle_folder))
        away = Site.__new__(Site)
        away.settings = nowhere
        mute = Site.__new__(Site)
        mute.settings = idle.settings.model_copy(
            update={"broker_url": nowhere.broker_url, "result_backend_url": nowhere.broker_url}
        )
        quick = [stack.enter_context(flujo_metrics(each)) for each in (site, idle)]
        slow = [stack.enter_context(flujo_metrics(each)) for each in (away, mute)]
        targets = [f"127.0.0.1:{port}" for port in (*quick, site.settings.metrics.port)]
        prometheus = stack.enter_context(Prometheus(tmp_path, targets, [f"127.0.0.1:{port}" for port in slow]))
        wait_until(lambda: "FlujoNoWorker" not in prometheus.not_fired(), what=(tmp_path / "prometheus.log").read_text)
        # an increase is one between two scrapes: what comes before the first is none
        wait_until(lambda: prometheus.has_data("flujo_schedule_to_start_seconds_bucket"), what=site.log)
        held = stack.enter_context(psycopg.connect(site.settings.database()))
        held.execute("SELECT 1")
        break_everything(site, idle)
        wait_until(lambda: prometheus.has_data('flujo_leases_lost_total{pipeline="alert"}'))
        with site.connection() as connection:
            connection.execute(AND_LATER)
        for _ in range(8):
            be_late(site)
            if prometheus.has_data("sum(flujo_worker_merges_refused_total) > 2"):
                break
        for _ in range(4):
            site.enqueue("giving_up").result(timeout=60)
        wait_until(lambda: not prometheus.not_fired(), what=lambda: f"{prometheus.not_fired()} {site.log()}")
        queries = [(title, target["expr"]) for title, target in panels("flujo-prometheus.json")]
        wait_until(
            lambda: all(prometheus.has_data(query) for _, query in queries),
            30,
            what=lambda: str([each for each in queries if not prometheus.has_data(each[1])]),
        )


def be_late(site):
    """Report outcomes of attempts that another worker seems to have claimed. The original worker may notice the claims first and cancel its attempts."""
    late = [site.enqueue("waiting") for _ in range(8)]
    for run in late:
        site.wait_for_execution(run.id, "gate")
    with site.connection() as connection:
        connection.execute(
            "UPDATE flujo_attempts SET fence = fence + 1 WHERE run_id = ANY(%s)", [[each.id for each in late]]
        )
    for run in late:
        site.open_gate(run.id)
    for run in late:
        run.result(timeout=60)


def break_everything(site, idle):
    """Cause the conditions that fire the alerts."""
    site.redis.lpush("flujo.attempts", b"garbage")
    runs = {name: idle.enqueue("three").id for name in ("queued", "unsent", "rate", "parked", "stuck", "waiting")}
    with site.connection() as connection:
        for statement in DONE_TO_THE_FLEET.split(";\n"):
            connection.execute(statement)
    with idle.connection() as connection:
        for statement in (DONE_TO_AN_IDLE_FLEET + ";\n" + A_WORKER_THAT_DOES_NOT_SWEEP).split(";\n"):
            connection.execute(statement, runs)


def test_postgres_has_data_behind_every_panel(site):
    with site.connection() as connection:
        connection.execute(
            "INSERT INTO flujo_budgets (scope, limit_usd) VALUES ('tenant:b:' || to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD'), 1)"
        )
    empty = []
    for title, target in panels("flujo-postgres.json"):
        statement = re.sub(
            r"\$__timeFilter\(([\w.]+)\)", r"\1 BETWEEN now() - interval '1 h' AND now()", target["rawSql"]
        )
        assert "$" not in statement
        if not site.rows(statement.replace("%", "%%")):
            empty.append(title)
    assert empty == []


def test_each_alert_has_its_part_of_the_page_and_promtool_accepts_all():
    page = (GRAFANA.parents[1] / "docs/how-to/alerts.md").read_text()
    headings = re.findall(r"^## (\w+)$", page, re.MULTILINE)
    assert headings == [rule["alert"] for rule in RULES]
    for rule in RULES:
        assert rule["annotations"]["runbook_url"] == f"docs/how-to/alerts.md#{rule['alert'].lower()}"
    if promtool := shutil.which("promtool"):
        subprocess.run([promtool, "check", "rules", GRAFANA / "alerts.yml"], check=True)
