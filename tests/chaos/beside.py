"""The monkey of `flujo chaos` beside other projects: it enqueues chains of four steps and fans of five and one more, and counts what is left.

A project is a `Side`. Each of its steps leaves an effect, as a step of the monkey does; nothing of ours runs but the faults.
"""

from __future__ import annotations

import argparse
import random
import time
from abc import ABC, abstractmethod

import psycopg

from flujo_client.config.manager import ConfigManager
from flujo_worker.chaos.faults import FaultDeck
from flujo_worker.chaos.ledger import patiently
from flujo_worker.chaos.site import SiteOptions, embedded_site, own_folder

SHAPES = ("chain", "fan")
GAP_S = (0.5, 2.0)
STILL_S = 60.0
"""So long after the last effect nothing more is expected."""
FAULTS = {
    "kill -9 of a worker",
    "a worker stopped and continued",
    "Postgres crashed",
    "Postgres restarted",
    "Postgres read-only",
    "an idle transaction that pins the snapshot",
}
"""The faults of workers and of Postgres that are not about rows of ours."""
TABLE = "CREATE TABLE effects (work text, step int, at timestamptz DEFAULT clock_timestamp())"
ENDED = "SELECT work FROM effects GROUP BY work HAVING count(DISTINCT step) = CASE WHEN work LIKE 'chain%' THEN 4 ELSE 6 END"
REPEATED = "SELECT count(*) FROM (SELECT 1 FROM effects GROUP BY work, step HAVING count(*) > 1) AS repeated"
STILL = "SELECT extract(epoch FROM clock_timestamp() - max(at))::float8 FROM effects"


class Side(ABC):
    """One project: its worker processes and its client.

    Attributes:
        name: with its version.
        faults: the names of those that apply to it.
    """

    name: str
    faults: set[str]

    @abstractmethod
    def prepare(self, site, log, workers):
        """Return the fleet of its workers."""

    @abstractmethod
    def enqueue(self, work):
        """Enqueue a chain or a fan; return whether it was accepted."""

    def enqueue_killer(self):
        """Enqueue work whose step kills its process each time."""
        raise NotImplementedError

    def explain(self, url, lost):
        """Return the states of what was lost, as the project knows them."""
        return {}

    @abstractmethod
    def close(self):
        """End the client."""


def ask(url, query):
    """Return the rows once Postgres answers again: a fault may have just ended."""

    def once():
        with psycopg.connect(url, autocommit=True) as connection:
            found = connection.execute(query)
            return found.fetchall() if found.description else []

    return patiently(once)


def main(side):
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--duration", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=3)
    given = parser.parse_args()
    with (
        own_folder(is_kept=[]) as folder,
        embedded_site(ConfigManager().settings(), SiteOptions("beside", given.workers, folder)) as site,
    ):
        url = site.services.database_url
        ask(url, TABLE)
        site.fleet = side.prepare(site, folder / "side.log", given.workers)
        try:
            accepted, faults = storm(site, side, given)
            waiting = unended(site, accepted)
            site.fleet.stop()
            site.fleet.start()
            lost = unended(site, waiting) if waiting else []
        finally:
            side.close()
        print(
            f"{side.name}, seed {given.seed}: {len(accepted)} accepted, {len(waiting)} had not ended when nothing had happened for {STILL_S:g} s, "
            f"{len(lost)} nor after a restart of all workers, {ask(url, REPEATED)[0][0]} steps ran more than once; "
            f"{len(faults.strikes)} faults; states of what is lost: {side.explain(url, lost)}"
        )


def storm(site, side, given):
    """Let faults happen while work is enqueued; return what was accepted, and the faults."""
    draw, accepted, url = random.Random(given.seed), [], site.services.database_url
    site.fleet.start()
    while not side.enqueue("chain first") or not ask(url, ENDED):  # the same work each time
        time.sleep(0.2)
    faults = FaultDeck(site, side, given.seed)
    faults.kinds = {name: act for name, act in faults.kinds.items() if name in side.faults}
    until = time.monotonic() + given.duration
    while time.monotonic() < until:
        faults.strike()
        pause = time.monotonic() + draw.uniform(*GAP_S)
        while time.monotonic() < pause:
            faults.replace_dead()
            for _ in range(draw.randint(1, 3)):
                work = f"{draw.choice(SHAPES)} {len(accepted)}"
                if side.enqueue(work):
                    accepted.append(work)
            time.sleep(draw.uniform(0.1, 0.6))
    faults.end()
    return accepted, faults


def unended(site, accepted):
    """Wait until all has ended, or nothing has happened for a while; return what has not ended."""
    url, since = site.services.database_url, time.monotonic()
    while True:
        missing = set(accepted) - {row[0] for row in ask(url, ENDED)}
        if not missing or min(ask(url, STILL)[0][0], time.monotonic() - since) > STILL_S:
            return sorted(missing)
        site.fleet.replace_dead()
        time.sleep(1.0)
