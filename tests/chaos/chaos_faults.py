"""The faults. Each is one act on a site; `Injector` draws one after the other and keeps what the oracle needs to know of them."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from chaos_pipelines import QUEUES
from chaos_traffic import patiently
from junk import JUNK, bomb, push
from services import read_only

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fleet import Site, SiteFleet

    from flujo_client.api.handle import RunHandle

FROZEN_S = 3.5
"""Longer than the site's lease."""
FAILOVER_S = (1.0, 4.0)
GAP_S = (0.5, 1.5)
LOOK_EVERY_S = 0.05
MOST_OLD_MESSAGES = 500
MOST_TOLD = 6_000
JUNK_AT_ONCE = 5
BOMB_BYTES = 100 * 1024 * 1024
"""What a bomb unpacks to: a worker that did that would be seen by its time and its memory."""


@dataclass(frozen=True)
class Cancelled:
    """A cancel that was acknowledged, and all that a merge would change as it stood right after."""

    run: str
    picture: Any


@dataclass
class Interrupted:
    """An attempt whose worker was killed: it runs again once it is claimed under a higher fence."""

    key: str
    fence: int
    killed_at: float


@dataclass
class Tally:
    """What was done, and what was seen of it."""

    faults: Counter[str] = field(default_factory=Counter)
    doubled: int = 0
    junk: int = 0
    killers: list[RunHandle] = field(default_factory=list)
    cancels: list[Future[Cancelled | None]] = field(default_factory=list)
    recovered_s: list[float] = field(default_factory=list)
    deadlocks: list[str] = field(default_factory=list)


class Injector:
    """Draws faults for a site and its fleet.

    Args:
        site: what they happen to.
        fleet: its workers.
        seed: fixes which faults come in which order; not the moment they strike.
    """

    def __init__(self, site: Site, fleet: SiteFleet, seed: int) -> None:
        self._site, self._fleet, self._draw = site, fleet, random.Random(f"faults {seed}")
        self._aside = ThreadPoolExecutor(4, thread_name_prefix="chaos")
        self._frozen: dict[int, Future[None]] = {}
        self._refusing: Future[None] = Future()
        self._refusing.set_result(None)
        self._interrupted: list[Interrupted] = []
        self._old: list[tuple[str, bytes]] = []
        self.tally = Tally()
        self._faults: dict[str, tuple[Callable[[], None], int]] = {
            "cancel": (self.cancel, 3),
            "kill a worker": (self.kill, 2),
            "enqueue a killer": (self.enqueue_killer, 2),
            "freeze a worker": (self.freeze, 1),
            "wipe redis": (self.wipe_redis, 1),
            "cut redis connections": (self.cut_redis, 1),
            "crash postgres": (self.crash_postgres, 1),
            "read-only postgres": (self.read_only_postgres, 1),
            "restart redis": (self.restart_redis, 1),
            "double messages": (self.double, 1),
            "repeat an old message": (self.repeat_old, 1),
            "push junk": (self.push_junk, 1),
            "push a bomb": (self.push_bomb, 1),
        }

    def mend(self) -> None:
        """Replace workers that a killer has ended."""
        self._fleet.mend()

    def rage(self, seconds: float) -> None:
        """One fault after the other; then let everything that is frozen go on, and have the fleet whole."""
        until = time.monotonic() + seconds
        deck: list[str] = []
        while time.monotonic() < until:
            deck = deck or self._shuffled()
            name = deck.pop()
            self.tally.faults[name] += 1
            self._faults[name][0]()
            self._look_around(self._draw.uniform(*GAP_S))
        for over in (*self._frozen.values(), self._refusing):
            over.result()
        self._fleet.mend()

    def settle(self) -> Tally:
        """Wait for the cancels under way, look a last time, and give the tally."""
        self._aside.shutdown()
        self._look_for_recovered()
        self.tally.deadlocks += self._deadlocks_told()
        return self.tally

    def _shuffled(self) -> list[str]:
        """All faults, the frequent ones several times: drawn like cards, so that none is missing from a run."""
        deck = [name for name, (_, times) in self._faults.items() for _ in range(times)]
        self._draw.shuffle(deck)
        return deck

    def cancel(self) -> None:
        """Cancel a few random live runs, aside: the next fault does not wait for the acknowledgement."""
        live = [row["id"] for row in self._rows("SELECT id FROM flujo_runs WHERE ended_at IS NULL ORDER BY id")]
        for run in self._draw.sample(live, min(len(live), self._draw.randint(1, 4))):
            self.tally.cancels.append(self._aside.submit(self._cancel, run))

    def kill(self) -> None:
        """SIGKILL a worker that holds a lease, rather one that is at work; note what it ran."""
        running = self._rows(
            "SELECT w.pid, a.key, a.fence FROM flujo_workers w LEFT JOIN flujo_attempts a ON a.worker = w.id AND a.status = 'running'"
            " WHERE w.lease_until > now() ORDER BY w.pid, a.key"
        )
        pids = sorted({row["pid"] for row in running} & self._fleet.pids)
        if not pids:
            return
        pid = self._draw.choice(pids)
        os.kill(pid, signal.SIGKILL)
        now = time.monotonic()
        mine = [row for row in running if row["pid"] == pid and row["key"]]
        self._interrupted += [Interrupted(row["key"], row["fence"], now) for row in mine]
        for process in self._fleet.processes:
            if process.pid == pid:
                process.wait()
        self._fleet.mend()

    def enqueue_killer(self) -> None:
        """Enqueue a run whose step ends the process it runs in, each time."""
        number = len(self.tally.killers)
        order = {"context": {}, "idempotency_key": f"killer {number}"}
        self.tally.killers.append(patiently(lambda: self._site.client.enqueue("chaos_pipelines:killer", [], **order)))

    def freeze(self) -> None:
        """SIGSTOP a worker for longer than its lease."""
        awake = sorted(self._fleet.pids - {pid for pid, thawed in self._frozen.items() if not thawed.done()})
        pid = self._draw.choice(awake)
        self._signal(pid, signal.SIGSTOP)
        self._frozen[pid] = self._aside.submit(self._thaw, pid)

    def wipe_redis(self) -> None:
        self._draw.choice([self._site.redis.flushall, self._site.redis.flushdb])()

    def cut_redis(self) -> None:
        """Close every connection but our own."""
        self._site.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        self._site.redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes")

    def crash_postgres(self) -> None:
        self.tally.deadlocks += self._deadlocks_told()
        self._site.services.restart_postgres()

    def read_only_postgres(self) -> None:
        """Have Postgres refuse writes for as long as a failover takes; now and then that is longer than a lease."""
        if self._refusing.done():
            self._refusing = self._aside.submit(self._refuse_writes, self._draw.uniform(*FAILOVER_S))

    def restart_redis(self) -> None:
        self._site.services.restart_redis()

    def double(self) -> None:
        """Put a copy of every queued message behind it."""
        for queue, messages in self._queued().items():
            self._site.redis.lpush(queue, *messages)
            self.tally.doubled += len(messages)

    def repeat_old(self) -> None:
        """Publish some message once more that lay in a queue at any time since the beginning."""
        if self._old:
            self._site.redis.lpush(*self._draw.choice(self._old))

    def push_junk(self) -> None:
        """Push items that are not messages in front of those that are."""
        junk = self._draw.sample(sorted(JUNK), JUNK_AT_ONCE)
        push(self._site.redis, self._draw.choice(QUEUES), [JUNK[name] for name in junk])
        self.tally.junk += len(junk)

    def push_bomb(self) -> None:
        """Push a message of ours whose body is a gzip bomb: unpacked it would fill a worker's memory."""
        genuine = [(queue, message) for queue, message in self._old if b'"flujo.' in message]
        if genuine:
            queue, message = self._draw.choice(genuine)
            push(self._site.redis, queue, [orjson.dumps(bomb(orjson.loads(message), BOMB_BYTES))])
            self.tally.junk += 1

    def _cancel(self, run: str) -> Cancelled | None:
        handle: RunHandle = patiently(lambda: self._site.client.get_run(run))
        if not patiently(lambda: handle.cancel(reason="chaos")):
            return None
        return Cancelled(run, picture(self._site, run))

    def _refuse_writes(self, seconds: float) -> None:
        with read_only(self._site.services):
            time.sleep(seconds)

    def _thaw(self, pid: int) -> None:
        time.sleep(FROZEN_S)
        self._signal(pid, signal.SIGCONT)

    def _signal(self, pid: int, what: signal.Signals) -> None:
        for process in self._fleet.processes:
            if process.pid == pid and process.poll() is None:
                process.send_signal(what)

    def _look_around(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            known = set(self._old)
            seen = [(queue, message) for queue, messages in self._queued().items() for message in messages]
            self._old = (self._old + [each for each in seen if each not in known])[-MOST_OLD_MESSAGES:]
            self._look_for_recovered()
            self.mend()
            time.sleep(LOOK_EVERY_S)

    def _queued(self) -> dict[str, Sequence[bytes]]:
        found = {queue: self._site.redis.lrange(queue, 0, 200) for queue in QUEUES}
        return {queue: messages for queue, messages in found.items() if messages}

    def _look_for_recovered(self) -> None:
        if not self._interrupted:
            return
        keys = [each.key for each in self._interrupted]
        rows = self._rows("SELECT key, fence, status FROM flujo_attempts WHERE key = ANY(%(keys)s)", keys=keys)
        now, standing = time.monotonic(), {row["key"]: row for row in rows}
        again = [each for each in self._interrupted if standing[each.key]["fence"] > each.fence]
        self.tally.recovered_s += [now - each.killed_at for each in again]
        over = {row["key"] for row in rows if row["status"] not in ("ready", "queued", "running")}
        gone = {each.key for each in again} | over
        self._interrupted = [each for each in self._interrupted if each.key not in gone]

    def _deadlocks_told(self) -> list[str]:
        """What this server, since it was started, told of deadlocks: a crash takes its statistics, its log stands until then."""
        log = (self._site.services.directory / "postgres.log").read_text(errors="replace")
        return [told[:MOST_TOLD] for told in log.split("deadlock detected")[1:]]

    def _rows(self, sql: str, **parameters: Any) -> list[dict[str, Any]]:
        return patiently(lambda: self._site.rows(sql, **parameters))


def picture(site: Site, run: str) -> Any:
    """All of a run that a merge would change. A refused outcome may still be noted: that is not part of it."""
    scope = "SELECT address, version, status, cursor, output, context, closed_at FROM flujo_scopes WHERE run_id = %(run)s ORDER BY address"
    attempts = "SELECT key, status, fence, ended_at, output FROM flujo_attempts WHERE run_id = %(run)s ORDER BY key"
    told = "SELECT id, name FROM flujo_events WHERE run_id = %(run)s AND name <> 'outcome.refused' ORDER BY id"
    ended = "SELECT status, ended_at, output FROM flujo_runs WHERE id = %(run)s"
    return [patiently(lambda sql=sql: site.rows(sql, run=run)) for sql in (ended, scope, attempts, told)]
