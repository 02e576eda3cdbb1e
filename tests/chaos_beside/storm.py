"""Enqueue runs during faults on one project, wait until all have ended or the deadline is over, and count."""

import math
import os
import random
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from flujo_client.config.manager import ConfigManager
from flujo_worker.chaos.faults import FREEZE_S, FaultDeck
from flujo_worker.chaos.ledger import patiently
from flujo_worker.chaos.site import SiteOptions, embedded_site, own_folder
from tests.chaos_beside.count import Death, Execution, Tally, continued, tally
from tests.chaos_beside.processes import Client, Workers
from tests.chaos_beside.steps import BROKER, DATABASE, TABLE

GAP_S = (2.0, 4.0)
"""Seconds from a fault to the next."""
PAST_LEASE_S = (8.0, 14.0)
"""How long a worker is stopped: longer than its lease."""
RUN_EVERY_S = 0.25
DEADLINE_S = 60.0
"""All has to end within so many seconds of the last fault, and what a killed worker ran has to continue."""
KILLS = 5
"""So many workers are killed before the other faults, one at a time."""
START_S = 60.0
KILL, DEPLOY = "kill -9 of a worker", "workers deployed"
FAULTS = {KILL, "a worker stopped and continued", "Postgres crashed", "Postgres read-only"}
REDIS_FAULTS = {"Redis flushed", "Redis restarted"}
WORKED = "SELECT DISTINCT worker FROM executions WHERE done_at IS NOT NULL"
BUSY = """
    SELECT run FROM executions AS one WHERE worker = %s AND done_at IS NULL
    AND NOT EXISTS (SELECT FROM executions AS later WHERE later.run = one.run AND later.began_at > one.began_at)
"""
EXECUTIONS = "SELECT id, run, step, given, extract(epoch FROM began_at)::float8, extract(epoch FROM done_at)::float8 FROM executions"


class Outcome(NamedTuple):
    """What a storm left: the faults with their seconds, and how long after the last one all had ended."""

    tally: Tally
    faults: list
    settled_s: float


class Monkey(FaultDeck):
    """The faults of `flujo chaos` that concern every project. A worker that is killed or stopped is in the middle of a step."""

    def __init__(self, site, seed, *, has_redis):
        super().__init__(site, None, seed)
        wanted = FAULTS | (REDIS_FAULTS if has_redis else set())
        self.kinds = {name: act for name, act in self.kinds.items() if name in wanted} | {DEPLOY: self.deploy}

    def deploy(self):
        self._site.fleet.deploy()
        self._note(DEPLOY)

    def _last(self, between):
        super()._last(PAST_LEASE_S if between == FREEZE_S else between)

    def _process(self):
        """Choose a worker in the middle of a step. One that is stopped is as good as dead already."""
        self._site.fleet.replace_dead()
        processes = self._site.fleet.processes
        awake = [each for each in processes if each.pid not in self._frozen] or processes
        return self._draw.choice([each for each in awake if self._running(each)] or awake)

    def _running(self, process):
        return [run for (run,) in ask(self._site, BUSY, process.pid)]

    def story(self):
        """Return each fault, with the seconds from the first one to its end, and how many runs were interrupted."""
        first = min(strike.over_at for strike in self.strikes)
        return [(round(each.over_at - first, 1), each.fault, len(each.victims)) for each in self.strikes]

    def is_busy(self):
        return any(self._running(process) for process in self._site.fleet.processes)

    def deaths(self):
        return [Death(strike.over_at, strike.victims) for strike in self.strikes if strike.fault == KILL]


class Traffic:
    """Enqueues a run every quarter of a second, in a separate thread, until it is stopped. A context manager."""

    def __init__(self, client):
        self._client, self.accepted, self._stopped = client, [], threading.Event()
        self._thread = threading.Thread(target=self._enqueue, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stopped.set()
        self._thread.join()

    def _enqueue(self):
        """Enqueue; a client that had to wait catches up."""
        began, number = time.monotonic(), 0
        while not self._stopped.wait(began + number * RUN_EVERY_S - time.monotonic()):
            number += 1
            if self._client.enqueue(f"run{number}"):
                self.accepted.append(f"run{number}")


def ask(site, query, *values):
    """Return rows, as soon as Postgres answers."""

    def once():
        with site.connect() as connection:
            found = connection.execute(query, values)
            return found.fetchall() if found.description else []

    return patiently(once)


def storm(side, *, seed, seconds, workers, logs):
    """Play the faults on an installed tool, and count.

    Raises:
        TimeoutError: its workers did not start.
        CalledProcessError: its tables could not be made.
    """
    with ground(side, workers, logs / f"{side.tool.module}-{seed}.log") as (site, client):
        monkey = Monkey(site, seed, has_redis=side.tool.has_redis)
        with Traffic(client) as traffic:
            deaths = kill_in_calm(site, monkey)
            let_loose(site, monkey, seed, seconds)
        monkey.end()
        calm = time.monotonic()
        is_over(site, lambda: not unended(site, side, traffic.accepted))
        settled_s = time.monotonic() - calm
        counted = tally(traffic.accepted, side.tool.states(site, ask), executions(site), deaths)
        return Outcome(counted, monkey.story(), settled_s)


def kill_in_calm(site, monkey):
    """Kill some workers, each when the one before has been replaced and what it ran has continued; return their deaths."""
    for _ in range(KILLS):
        is_over(site, lambda: all_work(site) and monkey.is_busy())
        monkey.kill()
        is_over(site, lambda: math.inf not in continued(monkey.deaths()[-1], executions(site)))
    return monkey.deaths()


def is_over(site, condition, seconds=DEADLINE_S):
    """Wait for a condition, and replace workers meanwhile; return whether it holds in time."""
    until = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < until:
        site.fleet.replace_dead()
        time.sleep(0.2)
    return holds


def all_work(site):
    """Return whether every worker has done a step."""
    return {process.pid for process in site.fleet.processes} <= {worker for (worker,) in ask(site, WORKED)}


def executions(site):
    return [Execution(*row) for row in ask(site, EXECUTIONS)]


@contextmanager
def ground(side, workers, log):
    """Yield services and a client of a tool, with workers that have ended a first run."""
    with ExitStack() as stack:
        folder = stack.enter_context(own_folder(is_kept=[]))
        options = SiteOptions("beside", workers, folder)
        site = stack.enter_context(embedded_site(ConfigManager().settings(), options))
        os.environ |= {DATABASE: site.services.database_url, BROKER: site.services.broker_url}
        ask(site, TABLE)
        subprocess.run(side.command("prepare"), check=True, stdout=subprocess.DEVNULL)
        site.fleet = Workers(side.command, workers, log)
        client = Client(side.command("client"), log)
        stack.callback(client.close)
        stack.callback(site.fleet.stop)
        site.fleet.start()
        if not is_over(site, lambda: client.enqueue(f"warm {time.monotonic()}") and all_work(site), START_S):
            raise TimeoutError(f"{side.tool.name} did not start:\n{log.read_text()[-4000:]}")
        yield site, client


def let_loose(site, monkey, seed, seconds):
    """Let a fault happen every few seconds."""
    draw, until = random.Random(seed), time.monotonic() + seconds
    while time.monotonic() < until:
        monkey.strike()
        pause = time.monotonic() + draw.uniform(*GAP_S)
        while time.monotonic() < pause:
            monkey.replace_dead()
            time.sleep(0.1)


def unended(site, side, accepted):
    """Return the runs that the project has not called ended or failed."""
    states = side.tool.states(site, ask)
    return [run for run in accepted if states.get(run) not in {"ended", "failed"}]
