"""The monkey of `flujo chaos` on a plain Celery canvas: chains of four tasks, and chords of five and a callback, with `acks_late` and without anything of ours.

`python -m tests.chaos.canvas --seed 1 --duration 60` prints how many canvases were accepted and never ended, and how many tasks ran twice.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psycopg
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from flujo_client.config.manager import ConfigManager
from flujo_client.embedded.local import Fleet
from flujo_worker.chaos.faults import Faults
from flujo_worker.chaos.ledger import patiently
from flujo_worker.chaos.site import SiteOptions, embedded_site, own_folder

HERE = Path(__file__).parent
SHAPES = ("chain", "chord")
GAP_S = (0.5, 2.0)
STILL_S = 60.0
"""So long after the last effect nothing more is expected: six times the visibility timeout."""
KINDS = {
    "kill -9 of a worker",
    "a worker stopped and continued",
    "Redis flushed",
    "Redis restarted",
    "Redis stalled",
    "connections to Redis cut",
    "Postgres crashed",
    "Postgres restarted",
    "Postgres read-only",
}
"""The faults that are not about rows or messages of ours."""
TABLE = "CREATE TABLE canvas_effects (canvas text, step int, at timestamptz DEFAULT clock_timestamp())"
ENDED = "SELECT canvas FROM canvas_effects GROUP BY canvas HAVING count(DISTINCT step) = CASE WHEN canvas LIKE 'chain%' THEN 4 ELSE 6 END"
REPEATED = "SELECT count(*) FROM (SELECT 1 FROM canvas_effects GROUP BY canvas, step HAVING count(*) > 1) AS repeated"
STILL = "SELECT extract(epoch FROM clock_timestamp() - max(at))::float8 FROM canvas_effects"


class CeleryFleet(Fleet):
    def launch(self, arguments, environment, out):
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "canvas_tasks",
            "worker",
            "-P",
            "threads",
            "-c",
            "16",
            "-l",
            "WARNING",
        ]
        return subprocess.Popen(command, env={**os.environ}, cwd=HERE, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def enqueue(act, canvas):
    from celery import chain, chord

    if canvas.startswith("chain"):
        chain(act.s(None, canvas, 0), *(act.s(canvas, step) for step in range(1, 4))).apply_async()
    else:
        chord([act.s(None, canvas, step) for step in range(5)], act.s(canvas, 5)).apply_async()


def ask(url, query):
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(query)
        return found.fetchall() if found.description else []


def reached(url, query):
    """Return the rows once Postgres answers again: a fault may have just ended."""
    return patiently(lambda: ask(url, query))


def main(seed, seconds, workers):
    with (
        own_folder(is_kept=[]) as folder,
        embedded_site(ConfigManager().settings(), SiteOptions(f"{seed}", workers, folder)) as site,
    ):
        url = site.services.database_url
        os.environ |= {"CANVAS_BROKER": site.services.broker_url, "CANVAS_DATABASE": url}
        sys.path.insert(0, str(HERE))
        from canvas_tasks import act

        ask(url, TABLE)
        site.fleet = CeleryFleet(site.settings, processes=workers, log=folder / "celery.log")
        accepted = storm(site, act, seed, seconds)
        while reached(url, STILL)[0][0] < STILL_S and len(reached(url, ENDED)) < len(accepted):
            site.fleet.replace_dead()
            time.sleep(1.0)
        ended = {row[0] for row in reached(url, ENDED)}
        lost = sorted(set(accepted) - ended)
        print(
            f"seed {seed}: {len(accepted)} canvases accepted, {len(lost)} never ended "
            f"({sum(each.startswith('chain') for each in lost)} chains), {ask(url, REPEATED)[0][0]} tasks ran more than once"
        )


def storm(site, act, seed, seconds):
    """Let faults happen while canvases are enqueued; return those that Celery accepted."""
    draw, accepted = random.Random(seed), []
    site.fleet.start()
    enqueue(act, "chain first")
    while not reached(site.services.database_url, ENDED):
        time.sleep(0.2)
    faults = Faults(site, None, seed)
    faults.kinds = {name: act_ for name, act_ in faults.kinds.items() if name in KINDS}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        faults.strike()
        pause = time.monotonic() + draw.uniform(*GAP_S)
        while time.monotonic() < pause:
            faults.replace_dead()
            for _ in range(draw.randint(1, 3)):
                canvas = f"{draw.choice(SHAPES)} {len(accepted)}"
                try:
                    enqueue(act, canvas)
                except (OperationalError, RedisError):
                    continue
                accepted.append(canvas)
            time.sleep(draw.uniform(0.1, 0.6))
    faults.end()
    return accepted


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--duration", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=3)
    given = parser.parse_args()
    main(given.seed, given.duration, given.workers)
