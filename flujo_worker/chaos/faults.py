"""The faults. Each is one act on a site, and leaves a `Strike`, from which recovery is measured."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from subprocess import Popen
from typing import Any, Final

import psycopg

from flujo_client.embedded import Embedded
from flujo_client.errors import RunNotFound, WaitTimedOut
from flujo_worker.chaos.invariants import Observed
from flujo_worker.chaos.ledger import patiently, sql
from flujo_worker.chaos.report import Strike
from flujo_worker.chaos.site import APPLICATION, QUEUES, Site
from flujo_worker.chaos.traffic import Traffic

SPELL_S: Final = (1.0, 4.0)
FREEZE_S: Final = (1.0, 9.0)
"""Seconds; the longest are longer than a lease."""
PIN_S: Final = (3.0, 10.0)
STALL_S: Final = (0.5, 2.0)
LOCKED_TABLES: Final = (
    "flujo_attempts",
    "flujo_blobs",
    "flujo_broker_epochs",
    "flujo_budgets",
    "flujo_limits",
    "flujo_permits",
    "flujo_reservations",
    "flujo_runs",
    "flujo_scopes",
    "flujo_sweeps",
    "flujo_workers",
)
"""The tables whose rows workers write while runs go on."""
MOST_OLD_MESSAGES: Final = 500
MOST_READ: Final = 200
JUNK: Final = (b"", b"{}", b"not a message", b'{"body": 1}', b"\x80\x04K\x01.", b"[" * 1000)


class FaultDeck:
    """Draws faults like cards: each kind happens before one happens again. The seed fixes their order, but not the time of each."""

    def __init__(self, site: Site, traffic: Traffic, seed: int) -> None:
        self._site, self._traffic, self._draw = site, traffic, random.Random(f"faults {seed}")
        self._aside = ThreadPoolExecutor(16, thread_name_prefix="chaos-fault")
        self._lasting: list[Future[None]] = []
        self._frozen: set[int] = set()
        self._deck: list[str] = []
        self._to_lock: list[str] = []
        self._old: list[tuple[str, bytes]] = []
        self.strikes: list[Strike] = []
        self.observed = Observed()
        outside: dict[str, Callable[[], Any]] = {
            "kill -9 of a worker": self.kill,
            "a worker stopped and continued": self.freeze,
            "a run that kills its worker": self.enqueue_killer,
            "runs cancelled": self.cancel,
            "connections to Postgres cut": self.cut_postgres,
            "messages delivered twice": self.double,
            "old messages delivered again": self.repeat_old,
        }
        inside: dict[str, Callable[[], Any]] = {
            "Redis flushed": self.flush_redis,
            "Redis restarted": self.restart_redis,
            "Redis stalled": self.stall_redis,
            "connections to Redis cut": self.cut_redis,
            "items that are not messages": self.push_junk,
            "Postgres crashed": lambda: self.restart_postgres("immediate"),
            "Postgres restarted": lambda: self.restart_postgres("fast"),
            "Postgres read-only": self.refuse_writes,
            "Postgres out of connections": self.exhaust_connections,
            "the table of attempts locked": self.lock_attempts,
            "an idle transaction that pins the snapshot": self.pin_snapshot,
            "rows locked by an idle transaction": self.lock_rows,
        }
        self.kinds = outside | (inside if site.services else {})

    def strike(self) -> str:
        """Inject the next fault; return its name."""
        self._remember_messages()
        if not self._deck:
            self._deck = sorted(self.kinds)
            self._draw.shuffle(self._deck)
        name = self._deck.pop()
        self.kinds[name]()
        return name

    def replace_dead(self) -> None:
        """Replace workers that were killed; raise the error of a lasting fault, if any."""
        self._site.fleet.replace_dead()
        for over in [each for each in self._lasting if each.done()]:
            self._lasting.remove(over)
            over.result()

    def end(self) -> None:
        """Wait until lasting faults are over."""
        self._aside.shutdown()
        self.replace_dead()
        self._count_refused()
        self._count_deadlocks()

    # --- workers -----------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill a worker process; another one replaces it."""
        process = self._process()
        victims = self._running(process)
        process.kill()
        process.wait()
        self._note("kill -9 of a worker", victims)
        self._site.fleet.replace_dead()

    def freeze(self) -> None:
        """SIGSTOP a worker process, sometimes for longer than its lease, and let it continue."""
        process = self._process()
        if process.pid in self._frozen:
            return
        self._frozen.add(process.pid)
        victims = self._running(process)
        process.send_signal(signal.SIGSTOP)
        self._note("a worker stopped and continued", victims)

        def thaw() -> None:
            self._last(FREEZE_S)
            process.send_signal(signal.SIGCONT)
            self._frozen.discard(process.pid)

        self._begin(thaw)

    def enqueue_killer(self) -> None:
        """Enqueue a run whose step kills its process, and the attempts beside it."""
        self._begin(self._traffic.enqueue_killer)
        self._note("a run that kills its worker")

    def cancel(self) -> None:
        """Cancel a few live runs, and record how far they had come when it was acknowledged."""
        live = self._site.live_runs()
        for run in self._draw.sample(live, min(len(live), self._draw.randint(1, 3))):
            self._begin(partial(self._cancel, run))
        self._note("runs cancelled")

    # --- messages ----------------------------------------------------------------------------------------------------

    def double(self) -> None:
        """Put a copy of every queued message behind it."""
        for queue, messages in self._queued().items():
            self._site.broker.redis.lpush(queue, *messages)
        self._note("messages delivered twice")

    def repeat_old(self) -> None:
        """Publish messages again that were in a queue at any time since the start."""
        for queue, message in self._draw.sample(self._old, min(len(self._old), 5)):
            self._site.broker.redis.lpush(queue, message)
        self._note("old messages delivered again")

    def push_junk(self) -> None:
        """Push items that are not messages."""
        self._site.broker.redis.lpush(self._draw.choice(QUEUES), *JUNK)
        self.observed.junk += len(JUNK)
        self._note("items that are not messages")

    # --- Redis -------------------------------------------------------------------------------------------------------

    def flush_redis(self) -> None:
        self._count_refused()
        self._site.broker.redis.flushall()
        self._note("Redis flushed")

    def restart_redis(self) -> None:
        """Stop Redis, which loses all data, and start it."""
        self._count_refused()
        with self._away("Redis restarted"):
            self._services.restart_redis()

    def stall_redis(self) -> None:
        """Stop the process of Redis for a moment."""
        pid = self._services.redis_pid
        with self._away("Redis stalled"):
            os.kill(pid, signal.SIGSTOP)
            self._last(STALL_S)
            os.kill(pid, signal.SIGCONT)

    def cut_redis(self) -> None:
        """Close every connection to Redis but our own."""
        for kind in ("normal", "pubsub"):
            self._site.broker.redis.client_kill_filter(_type=kind, skipme=True)
        self._note("connections to Redis cut")

    # --- Postgres ----------------------------------------------------------------------------------------------------

    def cut_postgres(self) -> None:
        """Terminate every connection of the workers and the client."""
        self._site.rows("cut_connections", application=APPLICATION)
        self._note("connections to Postgres cut")

    def restart_postgres(self, mode: Any) -> None:
        """Crash Postgres, or shut it down cleanly, and start it."""
        self._count_deadlocks()
        with self._away("Postgres crashed" if mode == "immediate" else "Postgres restarted"):
            self._services.restart_postgres(mode)

    def refuse_writes(self) -> None:
        """Make every transaction read-only for a while, as a server does after a failover."""

        def spell() -> None:
            with self._away("Postgres read-only"):
                self._site.rows("refuse_writes")
                self._site.rows("reload")
                self._last(SPELL_S)
                self._accept_writes()

        self._begin(spell)

    def exhaust_connections(self) -> None:
        """Open connections until Postgres refuses more, and hold them for a while."""

        def spell() -> None:
            with ExitStack() as held:
                some = []
                with suppress(psycopg.OperationalError):
                    while True:
                        some.append(held.enter_context(self._site.connect()))
                away_s = self._keep(some[0], SPELL_S) if some else 0.0
            self._note("Postgres out of connections", away_s=away_s)

        self._begin(spell)

    def lock_attempts(self) -> None:
        """Lock the table of attempts against writes for a while, as a careless migration does."""
        self._begin(lambda: self._hold("lock_attempts", STALL_S, "the table of attempts locked", keeps_away=True))

    def pin_snapshot(self) -> None:
        """Leave a transaction idle for a while: no dead row can be removed meanwhile."""
        self._begin(lambda: self._hold("pin_snapshot", PIN_S, "an idle transaction that pins the snapshot"))

    def lock_rows(self) -> None:
        """Leave a transaction idle for a while that has locked rows of one of our tables, another one each time."""
        if not self._to_lock:
            self._to_lock = self._draw.sample(LOCKED_TABLES, len(LOCKED_TABLES))
        table, fault = self._to_lock.pop(), "rows locked by an idle transaction"
        self._begin(lambda: self._hold("lock_rows", PIN_S, fault, keeps_away=True, table=table))

    # --- what they are made of ---------------------------------------------------------------------------------------

    @property
    def _services(self) -> Embedded:
        assert self._site.services is not None
        return self._site.services

    def _accept_writes(self) -> None:
        self._site.rows("accept_writes")
        self._site.rows("reload")

    def _begin(self, lasting: Callable[[], Any]) -> None:
        self._lasting.append(self._aside.submit(lasting))

    def _last(self, between: tuple[float, float]) -> None:
        time.sleep(self._draw.uniform(*between))

    def _note(self, fault: str, victims: Sequence[str] = (), *, away_s: float = 0.0) -> None:
        self.strikes.append(Strike(fault, self._site.now(), tuple(victims), away_s))

    @contextmanager
    def _away(self, fault: str) -> Iterator[None]:
        """Note a fault that keeps a service away meanwhile."""
        began = time.monotonic()
        yield
        self._note(fault, away_s=time.monotonic() - began)

    def _hold(
        self, name: str, between: tuple[float, float], fault: str, *, keeps_away: bool = False, table: str = ""
    ) -> None:
        """Hold a transaction; a fault that ends it early ends this one too."""
        away_s = 0.0
        ends = psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction
        with suppress(*ends), self._site.connect() as connection, connection.transaction():
            connection.execute(sql(name).replace("{table}", table).encode())
            away_s = self._keep(connection, between)
        self._note(fault, away_s=away_s if keeps_away else 0.0)

    def _keep(self, connection: psycopg.Connection[Any], between: tuple[float, float]) -> float:
        """Keep a connection for a while; return for how long, 0 if a fault has cut it meanwhile."""
        began = time.monotonic()
        self._last(between)
        try:
            connection.execute("SELECT")
        except psycopg.OperationalError:
            return 0.0
        return time.monotonic() - began

    def _cancel(self, run_id: str) -> None:
        asked_at = self._site.now()
        with suppress(WaitTimedOut, RunNotFound):  # it takes effect anyway, or the run was lost in a failover
            run = patiently(lambda: self._site.client.get_run(run_id))
            if patiently(lambda: run.cancel(reason="flujo chaos")):
                self._site.rows("record_cancel", run=run_id, asked_at=asked_at)

    def _process(self) -> Popen[bytes]:
        self._site.fleet.replace_dead()
        return self._draw.choice(self._site.fleet.processes)

    def _running(self, process: Popen[bytes]) -> list[str]:
        return [row["key"] for row in self._site.rows("running", pid=process.pid)]

    def _queued(self) -> dict[str, list[bytes]]:
        found: dict[str, list[Any]] = {queue: self._site.broker.redis.lrange(queue, 0, MOST_READ) for queue in QUEUES}
        return {queue: messages for queue, messages in found.items() if messages}

    def _remember_messages(self) -> None:
        seen = [(queue, message) for queue, messages in self._queued().items() for message in messages]
        self._old = list(dict.fromkeys(self._old + seen))[-MOST_OLD_MESSAGES:]

    def _count_refused(self) -> None:
        """Add the refused messages; afterwards Redis is emptied, or the storm is over."""
        self.observed.refused.update(self._site.broker.refused().reasons)

    def _count_deadlocks(self) -> None:
        """Count them in the log, which is new after each start: a crash loses the statistics."""
        if self._site.services is not None:
            log = self._site.services.directory / "postgres.log"
            self.observed.deadlocks += log.read_text(errors="replace").count("deadlock detected")
