"""Sites for tests that need real processes: a migrated database, a Redis database of its own, a client, and workers on them.

What the workers of a site import stands in `tests/acceptance`; each step that runs there leaves a line in the site's journal, so
that executions can be counted whatever becomes of the database. Nothing here knows what a test is about.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, Self, TypeVar

import psycopg
import pytest
import redis
from psycopg.rows import dict_row

from flujo_client.api.client import FlujoClient
from flujo_client.api.handle import RunHandle
from flujo_client.config.manager import Settings
from flujo_client.embedded import Embedded
from flujo_client.embedded.local import Fleet
from tests.support.nursery import Forked, nursery
from tests.support.services import database_called, drop_database, fresh_redis, migrated_database

T = TypeVar("T")

STEPS = Path(__file__).parents[1] / "acceptance"
FOLDER = "ACCEPTANCE_FOLDER"
POOL = os.environ.get("TEST_POOL", "attempts")
"""The pool of workers whose tests ask for no other one: `attempts`, `threads` or `prefork`."""

CHILDREN = 4
"""How many processes a prefork worker has in tests."""

one_process = pytest.mark.skipif(
    POOL == "prefork", reason="stops or counts processes that work, and prefork's are children"
)
own_pool = pytest.mark.skipif(POOL != "attempts", reason="is about what Flujo's own pool alone does")
PATIENCE_S = 120.0
STUCK = """
SELECT 'run' AS what, id FROM flujo_runs WHERE ended_at IS NULL
UNION ALL SELECT 'attempt', key FROM flujo_attempts WHERE ended_at IS NULL
UNION ALL SELECT 'scope', run_id || ' ' || address FROM flujo_scopes WHERE status = 'open'
UNION ALL SELECT 'reservation', key FROM flujo_reservations WHERE held
UNION ALL SELECT 'budget', scope FROM flujo_budgets WHERE (reserved_tokens, reserved_usd) <> (0, 0)
"""
"""Whatever has not ended, or is kept for something that has."""

BRISK = {"lease_s": 2.5, "renew_s": 0.5, "sweep_s": 0.5}
"""A lease short enough that a test of lost workers need not wait for it."""

STEADY = {**BRISK, "lease_s": 60.0}
"""For tests in which nothing is lost: no lease lapses because the machine is busy, so nothing is done twice."""


def whole_lines(file: Path) -> list[str]:
    """Return the lines of a file that processes append to; none if there is no file. The last one may be half written."""
    text = file.read_text() if file.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def wait_until(condition: Callable[[], T], deadline: float = PATIENCE_S, *, what: str | Callable[[], str] = "") -> T:
    """Poll until the condition gives something true, and return that; fail after `deadline` seconds."""
    until, pause = time.monotonic() + deadline, 0.005
    while not (found := condition()):
        if time.monotonic() > until:
            pytest.fail(f"not within {deadline:g} s: {what() if callable(what) else what}")
        time.sleep(pause)
        pause = min(1.5 * pause, 0.05)  # a condition mostly asks Postgres
    return found


class Execution(NamedTuple):
    """One line of the journal: this attempt was begun in this process."""

    run: str
    step: str
    attempt: int
    pid: int


class Site:
    """One database, one Redis database, and whoever works on them. A context manager.

    Args:
        services: the servers.
        folder: where the journal, the gates and the workers' logs are kept.
        worker: settings of the section `worker`.
        database: one of the servers' databases that is there already; None makes one.
        rest: other settings.
    """

    def __init__(
        self,
        services: Embedded,
        folder: Path,
        *,
        worker: dict[str, Any] | None = None,
        database: str | None = None,
        **rest: Any,
    ) -> None:
        self.services, self.folder = services, folder
        self._database_url = database_called(services, database) if database else migrated_database(services)
        broker_url = fresh_redis(services)
        quick = {"base_s": 0.05, "jitter": 0.0}
        counted = {"max_starved": 0, **(worker or {})}  # tests count attempts, and a busy machine must add none
        values = {"database_url": self._database_url, "broker_url": broker_url, "worker": counted, "retry": quick}
        self.settings = Settings.model_validate(values | rest)
        self.client = FlujoClient(self.settings)
        self.redis = redis.Redis.from_url(broker_url)
        self._fleets: list[SiteFleet] = []
        self._standing: SiteFleet | None = None
        self._asking: psycopg.Connection[dict[str, Any]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss()
        self.client.close()
        self.redis.close()
        if self._asking is not None:
            self._asking.close()
        drop_database(self.services, self._database_url)

    def workers(
        self, processes: int = 1, *, arguments: Sequence[str] = (), failpoints: str = "", code: Path | str = STEPS
    ) -> SiteFleet:
        """Start worker processes that import what is in `code`, and wait until they take work."""
        fleet = self.unready_workers(processes, arguments=arguments, failpoints=failpoints, code=code)
        wait_until(lambda: self.works(fleet), what=self.log)
        return fleet

    def standing(self, processes: int = 1) -> SiteFleet:
        """See to it that at least so many ordinary workers stand ready; those of the tests before continue, for a start is dear."""
        if self._standing is None:
            self._standing = self.unready_workers(0)
        self._standing.grow(processes)
        wait_until(lambda: self.works(self._standing), what=self.log)
        return self._standing

    def unready_workers(
        self, processes: int = 1, *, arguments: Sequence[str] = (), failpoints: str = "", code: Path | str = STEPS
    ) -> SiteFleet:
        """Start worker processes without waiting for them."""
        if failpoints and POOL == "prefork":
            pytest.skip("a process that ends itself is a child, and its parent replaces it")
        settings = self.settings.model_copy(update={"failpoints": failpoints})
        fleet = SiteFleet(settings, processes, self.folder, code, [*self._pool(arguments), *arguments])
        self._fleets.append(fleet)
        fleet.start()
        return fleet

    def _pool(self, arguments: Sequence[str]) -> Sequence[str]:
        """Choose the pool that all tests are run with, unless this one chooses. Prefork's slots are processes, so they are few."""
        if "--pool" in arguments:
            return ()
        if POOL != "prefork" or "--concurrency" in arguments:
            return ("--pool", POOL)
        own = self.settings.worker
        if "concurrency" not in own.model_fields_set:
            return ("--pool", POOL, "--concurrency", str(CHILDREN))
        if own.concurrency > CHILDREN:
            pytest.skip(f"needs {own.concurrency} attempts at once, and prefork has a process for each")
        return ("--pool", POOL)

    def dismiss(self) -> None:
        """End every worker as a power cut would."""
        for fleet in self._fleets:
            fleet.kill()
        self._fleets.clear()
        self._standing = None

    def enqueue(self, name: str, value: Any = None, **options: Any) -> RunHandle:
        """Enqueue a pipeline of `acceptance_pipelines`; its trail begins empty unless a value is given."""
        return self.client.enqueue(f"acceptance_pipelines:{name}", [] if value is None else value, **options)

    def executions(self, run: str, step: str | None = None) -> list[Execution]:
        """Every time a step of the run was begun, in order."""
        lines = whole_lines(self.folder / "journal")
        all_of_them = [Execution(run_, step_, int(n), int(pid)) for run_, step_, n, pid in map(str.split, lines)]
        return [each for each in all_of_them if each.run == run and step in (None, each.step)]

    def wait_for_execution(self, run: str, step: str, times: int = 1) -> Execution:
        """Wait until a step was begun that often; return the last time."""
        wait_until(lambda: len(self.executions(run, step)) >= times, what=self.log)
        return self.executions(run, step)[-1]

    @contextmanager
    def watched_broker(self) -> Iterator[dict[str, str]]:
        """Watch what is pushed to Redis; give the name of each Celery task that was, by the task's id, as they come."""
        tasks: dict[str, str] = {}
        ended = threading.Event()
        with self.redis.monitor() as monitor:
            watching = threading.Thread(target=_watch, args=(monitor, tasks, ended), daemon=True)
            watching.start()
            try:
                yield tasks
            finally:
                ended.set()
                self.redis.ping()  # so that the monitor has something more to tell
                watching.join(PATIENCE_S)

    def open_gate(self, run: str) -> None:
        """Let the run's gated steps continue."""
        (self.folder / f"gate-{run}").touch()

    def rows(self, sql: str, **parameters: Any) -> list[dict[str, Any]]:
        """Ask the database, over a connection that is kept: what is waited for is asked fifty times a second."""
        try:
            return self._asked(sql, parameters)
        except psycopg.OperationalError:  # it was restarted meanwhile
            self._asking = None
            return self._asked(sql, parameters)

    def _asked(self, sql: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
        if self._asking is None:
            self._asking = psycopg.connect(self._database_url, row_factory=dict_row, autocommit=True)
        return self._asking.execute(sql.encode(), parameters).fetchall()

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[dict[str, Any]]]:
        """A connection of the test's own; what it did is committed at the end of the block."""
        with psycopg.connect(self._database_url, row_factory=dict_row) as connection:
            yield connection

    def attempts(self, run: str) -> list[dict[str, Any]]:
        """The run's attempts, in the order they were made."""
        return self.rows("SELECT * FROM flujo_attempts WHERE run_id = %(run)s ORDER BY created_at, number", run=run)

    def root(self, run: str) -> dict[str, Any]:
        """The run's root scope."""
        return self.rows("SELECT * FROM flujo_scopes WHERE run_id = %(run)s AND address = ''", run=run)[0]

    def events(self, run: str, *names: str) -> list[dict[str, Any]]:
        """The run's events of these names."""
        events = "SELECT * FROM flujo_events WHERE run_id = %(run)s AND name = ANY(%(names)s) ORDER BY id"
        return self.rows(events, run=run, names=list(names))

    def stuck(self) -> list[dict[str, Any]]:
        """What is left once all runs should have ended."""
        return self.rows(STUCK)

    def live_pids(self) -> set[int]:
        """The processes whose lease is alive."""
        return {row["pid"] for row in self.rows("SELECT pid FROM flujo_workers WHERE lease_until > now()")}

    def works(self, fleet: SiteFleet) -> bool:
        """Tell whether each process of a fleet takes work; with prefork, one of its children at least."""
        live = self.live_pids()
        return all(pid in live or live & children(pid) for pid in fleet.pids)

    def log(self) -> str:
        """The end of what the workers printed, for a failure's message."""
        log = self.folder / "workers.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-15:]) if log.exists() else "no log"


class SiteFleet(Fleet):
    """A fleet whose workers find the steps and the site's folder."""

    def __init__(
        self, settings: Settings, processes: int, folder: Path, code: Path | str, arguments: Sequence[str] = ()
    ) -> None:
        super().__init__(settings, processes=processes, log=folder / "workers.log", arguments=arguments)
        self._variables = {FOLDER: str(folder), "PYTHONPATH": str(code)}

    @property
    def pids(self) -> set[int]:
        """The processes that run."""
        return {process.pid for process in self.processes if process.poll() is None}

    def spawn(self) -> Forked:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self._variables.items():
                patch.setenv(name, value)
            return super().spawn()

    def launch(self, arguments: Sequence[str], environment: Mapping[str, str], out: IO[bytes] | None) -> Forked:
        return nursery().fork(arguments, environment, self._log)

    def grow(self, processes: int) -> None:
        """Start what is missing to so many processes."""
        self._count = max(self._count, processes)
        self.replace_dead()

    def signal(self, what: signal.Signals) -> None:
        """Send a signal to every process."""
        for pid in self.pids:
            for each in (pid, *children(pid)):
                os.kill(each, what)

    def kill(self) -> None:
        """End every process as a power cut would."""
        for process in self.processes:
            if process.poll() is not None:  # its number may be another process's by now
                continue
            for pid in (process.pid, *children(process.pid)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()
        self.processes.clear()


def children(pid: int) -> set[int]:
    """The processes that this one has started and that run; workers of the pools of threads have none."""
    if POOL != "prefork":
        return set()
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return {int(child) for child, parent in map(str.split, listed.splitlines()) if int(parent) == pid}


def assert_merged_once(site: Site, run: RunHandle, steps: Sequence[str]) -> None:
    """The run succeeded, and each step's result went into output, context and story exactly once."""
    result = run.result(timeout=PATIENCE_S)
    assert (result.run_status, result.output) == ("succeeded", list(steps)), site.log()
    assert [step.name for step in result.step_history] == list(steps)
    assert [event["data"]["step"] for event in site.events(run.id, "step.succeeded")] == list(steps)
    assert len(site.events(run.id, "run.succeeded")) == 1
    if result.final_pipeline_context is not None:
        assert result.final_pipeline_context.visits == list(steps)


TASK = re.compile(r'"task\\?":\\?"(?P<name>[\w.]+)\\?",\\?"id\\?":\\?"(?P<id>[^"\\]+)')


def _watch(monitor: Any, tasks: dict[str, str], ended: threading.Event) -> None:
    for command in monitor.listen():
        if ended.is_set():
            return
        if "PUSH" in command["command"][:8].upper():
            tasks |= {each["id"]: each["name"] for each in TASK.finditer(command["command"])}
