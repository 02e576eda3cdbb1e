"""Measure the page: how long each takes, and how many statements it sends, among a million runs and in a run of 100 000 attempts.

The rows are written by SQL, no worker runs. Told are the best and the median of some requests with a warm cache, in this process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any, Final

import psycopg
from starlette.testclient import TestClient

from flujo_client import FlujoClient, Settings
from flujo_client.embedded import Embedded
from flujo_client.embedded.local import migrate
from flujo_client.ui.app import flujo_ui
from tests.bench.report import circumstances
from tests.support.services import temporary_folder

RUNS: Final = 1_000_000
WITH_ATTEMPTS: Final = 50_000
ERROR: Final = {
    "category": "agent",
    "type_name": "KeyError",
    "message": "'language'",
    "feedback": "Agent execution failed with KeyError: 'language'",
    "traceback": "Traceback (most recent call last):\n  File \"/app/desk.py\", line 48, in classify\nKeyError: 'language'",
    "details": {"file": "desk.py", "line": 48},
}
PIPELINES: Final = "tests.bench.pipelines"
FAN_OUT: Final = """
UPDATE flujo_runs SET status = 'failed', reason = 'step ''pages'' failed', error = %(error)s, failed_key = %(run)s || ':pages#997:page:1',
       created_at = now() - interval '1 h', started_at = now() - interval '1 h', ended_at = now() - interval '10 min' WHERE id = %(run)s;
UPDATE flujo_attempts SET status = 'succeeded', created_at = now() - interval '1 h', started_at = now() - interval '1 h',
       ended_at = now() - interval '59 min', worker = 'worker-1', fence = 1, output = 'j1' WHERE run_id = %(run)s;
INSERT INTO flujo_scopes (run_id, address, status, output) VALUES (%(run)s, '', 'failed', 'j1')
ON CONFLICT (run_id, address) DO UPDATE SET status = 'failed', closed_at = now();
INSERT INTO flujo_scopes (run_id, address, parent, kind, step, name, place, status, output, error, opened_at, closed_at)
VALUES (%(run)s, 'pages', '', 'map', 'pages', 'pages', 1, 'failed', 'j1', %(error)s, now() - interval '59 min', now() - interval '10 min');
INSERT INTO flujo_scopes (run_id, address, parent, step, name, place, status, output, opened_at, closed_at)
SELECT %(run)s, 'pages#' || n, 'pages', 'pages', 'pages#' || n, n, CASE WHEN n %% 997 = 0 THEN 'failed' ELSE 'succeeded' END, 'j1', at, at + interval '20 s'
FROM generate_series(1, %(attempts)s) n, LATERAL (SELECT now() - interval '59 min' + n * (interval '48 min' / %(attempts)s) AS at) b;
INSERT INTO flujo_attempts (key, run_id, address, step, number, status, fence, worker, queue, created_at, started_at, ended_at, latency_s, output, error)
SELECT %(run)s || ':pages#' || n || ':page:1', %(run)s, 'pages#' || n, 'page', 1, CASE WHEN n %% 997 = 0 THEN 'failed' ELSE 'succeeded' END, 1, 'worker-1',
       'flujo.attempts', at, at + interval '2 s', at + interval '20 s', 18, CASE WHEN n %% 997 <> 0 THEN 'j"page"'::bytea END, CASE WHEN n %% 997 = 0 THEN %(error)s::jsonb END
FROM generate_series(1, %(attempts)s) n, LATERAL (SELECT now() - interval '59 min' + n * (interval '48 min' / %(attempts)s) AS at) b;
INSERT INTO flujo_events (run_id, attempt, name, data, at)
SELECT %(run)s, %(run)s || ':pages#' || n || ':page:1', 'step.succeeded', '{"step": "page", "attempts": 1}', now() - interval '30 min'
FROM generate_series(1, %(attempts)s) n, generate_series(1, 2);
INSERT INTO flujo_spends (key, fence, claim_id, run_id, input_tokens, output_tokens, requests, cost_usd, at)
SELECT %(run)s || ':pages#' || n || ':page:1', 1, gen_random_uuid(), %(run)s, 210, 64, 1, 0.0004, now() - interval '30 min' FROM generate_series(1, %(attempts)s) n;
"""
MANY: Final = """
INSERT INTO flujo_runs (id, fingerprint, reference, name, status, reason, error, failed_key, input, queue, digest, created_at, started_at, ended_at, tenant)
SELECT r.id, o.fingerprint, o.reference, (array['invoice', 'refund', 'reply', 'translate', 'crawl'])[1 + n %% 5], r.status,
       CASE WHEN r.status = 'failed' THEN 'step ''s1'' failed' END, CASE WHEN r.status = 'failed' THEN %(error)s::jsonb END,
       CASE WHEN r.status = 'failed' THEN r.id || '::s1:1' END, o.input, o.queue, 'd', at, at, CASE WHEN r.status <> 'running' THEN at + interval '4 s' END,
       (array['acme', 'globex', 'initech'])[1 + n %% 3]
FROM flujo_runs o, generate_series(1, %(runs)s) n, LATERAL (
    SELECT 'run_p' || lpad(n::text, 8, '0') AS id, now() - interval '10 days' + n * (interval '10 days' / %(runs)s) AS at,
           CASE WHEN n %% 7 = 0 THEN 'failed' WHEN n > %(runs)s - 200 THEN 'running' ELSE 'succeeded' END AS status
) r WHERE o.id = %(run)s;
INSERT INTO flujo_scopes (run_id, address, output) SELECT id, '', 'j1' FROM flujo_runs WHERE id > 'run_p' || lpad((%(runs)s - %(with_attempts)s)::text, 8, '0');
INSERT INTO flujo_attempts (key, run_id, address, step, number, status, fence, worker, queue, created_at, available_at, started_at, ended_at, latency_s, output, error)
SELECT r.id || '::' || s || ':1', r.id, '', s, 1, a.status, 1, CASE WHEN a.status <> 'queued' THEN 'worker-1' END, r.queue, r.created_at, r.created_at, r.created_at,
       CASE WHEN a.status <> 'queued' THEN r.created_at + interval '2 s' END, 1, 'j1', CASE WHEN a.status = 'failed' THEN r.error END
FROM flujo_runs r, unnest(array['s0', 's1']) s, LATERAL (
    SELECT CASE WHEN s = 's1' AND r.status = 'failed' THEN 'failed' WHEN s = 's1' AND r.status = 'running' THEN 'queued' ELSE 'succeeded' END AS status
) a WHERE r.id > 'run_p' || lpad((%(runs)s - %(with_attempts)s)::text, 8, '0');
INSERT INTO flujo_spends (key, fence, claim_id, run_id, input_tokens, output_tokens, requests, cost_usd, at)
SELECT r.id || '::s0:1', 1, gen_random_uuid(), r.id, 210, 64, 1, 0.0004, r.created_at FROM flujo_runs r
WHERE r.id > 'run_p' || lpad((%(runs)s - %(with_attempts)s)::text, 8, '0');
INSERT INTO flujo_workers (id, host, pid, build, slots, lease_until, queues)
VALUES ('worker-1', 'bench', 1, '0.1', 24, now() + interval '1 day', array['flujo.attempts', 'flujo.control']);
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-page", description=__doc__)
    parser.add_argument("--requests", type=int, default=12, help="of each page")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--json", type=Path, default=Path("bench-page.json"), help="where the figures go")
    options = parser.parse_args()
    with temporary_folder() as folder, Embedded(folder / "bench") as embedded:
        settings = Settings().with_services(embedded.database_url, embedded.broker_url)
        migrate(settings)
        with FlujoClient(settings) as client:
            pages = seed(client, embedded.database_url, options.runs)
            browser = TestClient(flujo_ui(client), base_url="http://localhost", client=("127.0.0.1", 50_000))
            figures = {name: measure(browser, path, options.requests) for name, path in pages.items()}
    options.json.write_text(
        json.dumps({"machine": circumstances(), "runs": options.runs, "pages": figures}, indent=2) + "\n"
    )
    print(f"{'page':58} {'best':>7} {'median':>7} {'queries':>7} {'KB':>6}")
    for name, each in figures.items():
        print(
            f"{name:58} {each['best_ms']:5.0f}ms {each['median_ms']:5.0f}ms {each['statements']:7} {each['bytes'] / 1024:6.0f}"
        )


def seed(client: FlujoClient, url: str, runs: int) -> dict[str, str]:
    """Write the rows, and return the addresses of the pages by what they show."""
    began, error = time.monotonic(), json.dumps(ERROR)
    one, ten, hundred = (client.enqueue(f"{PIPELINES}:{name}", 0).id for name in ("ten", "pages", "pages"))
    with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute("SET synchronous_commit = off")
        for run, attempts in ((ten, 10_000), (hundred, 100_000)):
            connection.execute(FAN_OUT, {"run": run, "attempts": attempts, "error": error})
        connection.execute(MANY, {"run": one, "runs": runs, "with_attempts": min(runs, WITH_ATTEMPTS), "error": error})
        connection.execute("UPDATE flujo_runs SET created_at = now() - interval '20 days' WHERE id = %s", [one])
        connection.execute("VACUUM (ANALYZE)")
    print(f"seeded within {time.monotonic() - began:.0f} s", flush=True)
    small = f"run_p{runs // 7 * 7:08}"
    return {
        "a failed run of 10 steps": f"/runs/{small}",
        "the same as JSON": f"/runs/{small}?format=json",
        "a run of 10 000 attempts": f"/runs/{ten}",
        "a run of 100 000 attempts": f"/runs/{hundred}",
        "page 1000 of its branches that succeeded": f"/runs/{hundred}/steps/pages?only=succeeded&skip=50000",
        "one attempt of it": f"/runs/{hundred}/attempts/{hundred}:pages%23997:page:1",
        f"list of {runs:,} runs": "/",
        "the failed ones": "/?tab=failed",
        "by pipeline and tenant": "/?pipeline=refund&tenant=acme",
        "text, found nowhere": "/?text=nothing-like-it",
        **{f"/{name}": f"/{name}" for name in ("approvals", "workers", "spend", "health")},
    }


def measure(browser: TestClient, path: str, requests: int) -> dict[str, Any]:
    """Request a page so often, and return its times."""
    seconds, answer = [], browser.get(path)
    for _ in range(requests):
        began = time.perf_counter()
        answer = browser.get(path)
        seconds.append(time.perf_counter() - began)
    statements = answer.headers.get("server-timing", '"0 ').partition('"')[2].partition(" ")[0]
    times = {"best_ms": min(seconds) * 1000, "median_ms": statistics.median(seconds) * 1000}
    return {**times, "status": answer.status_code, "statements": int(statements or 0), "bytes": len(answer.content)}


if __name__ == "__main__":
    main()
