"""Readers of streams that disconnect at random, while streams are trimmed, Redis is wiped and workers are killed."""

import os
import random
import signal
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from threading import Lock

import pytest

from flujo_client.contract.stream import keys_of
from tests.support.fleet import BRISK, PATIENCE_S, Site, wait_until

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.chaos,
    pytest.mark.timeout(3600),
    pytest.mark.site(worker=BRISK | {"max_lost": 20}),
]
ROUNDS = int(os.environ.get("STREAM_ROUNDS", "1000"))
AT_ONCE = 8
SEED = int(os.environ.get("STREAM_SEED", "1"))
ON = """
SELECT DISTINCT a.run_id FROM flujo_attempts a JOIN flujo_workers w ON w.id = a.worker
WHERE w.pid = %(pid)s AND w.ended_at IS NULL AND a.status = 'running'
"""


class Listener:
    """What one reader makes of a run's stream, over all its connections: texts that a page would show."""

    def __init__(self, run):
        self.run = run
        self.cursor = self.end = None
        self.texts, self.final, self.incomplete, self.read_now = {}, {}, set(), set()
        self.seen, self.gaps, self.withdrawn = set(), 0, 0
        self.void_at = 0.0
        self.log = []

    def listen(self, dice):
        """Read the stream to its end, with connections that break after a few events."""
        while self.end is None:
            left = dice.randint(1, 25)
            self.log.append("--")
            self.read_now.clear()
            with closing(self.run.stream(after=self.cursor)) as events:
                for event in events:
                    self.take(event)
                    self.cursor, left = event.cursor, left - 1
                    if left == 0:
                        break

    def take(self, event):  # noqa: C901 - one line for each kind
        place = event.address, event.step
        self.log.append(f"{event.kind} {event.step}#{event.attempt} {event.cursor} {event.text}")
        if event.kind in ("step_start", "token"):
            assert event.cursor not in self.seen, f"{event} is given twice"
            self.seen.add(event.cursor)
        if event.kind == "step_start":
            assert not self.texts.get(place), f"{event} begins anew, and nothing was withdrawn"
        elif event.kind == "token":
            assert place not in self.final, f"{event} is of a step whose output was given"
            self.texts[place] = self.texts.get(place, "") + event.text
            self.read_now.add(place)
        elif event.kind == "withdrawn":
            self._void([place])
            self.withdrawn += 1
            self.void_at = self.void_at or time.monotonic()
        elif event.kind == "gap":
            self.gaps += 1
            self.void_at = self.void_at or time.monotonic()
            self.incomplete |= {("", "begin"), ("", "go_on")}
            self.texts.clear()
        elif event.kind == "snapshot":
            for step in event.data["steps"]:
                if step["status"] == "succeeded":
                    self._merge((step["address"], step["step"]), step["output"])
        elif event.kind == "step_end":
            text, output = self.texts.get(place, ""), event.data["output"]
            is_replaced = place not in self.read_now and output.startswith(text)  # it was merged before this connection
            assert place in self.incomplete | self.final.keys() or text == output or is_replaced, "\n".join(
                [*self.log, output]
            )
            self._merge(place, event.data["output"])
        elif event.kind == "end":
            self.end = event.data

    def _void(self, places):
        for place in places:
            self.texts.pop(place, None)
            self.incomplete.discard(place)

    def _merge(self, place, output):
        assert self.final.setdefault(place, output) == output
        self.incomplete.discard(place)


class Trouble:
    """Breaks what streams depend on."""

    def __init__(self, site: Site) -> None:
        self.site, self.fleet, self._lock = site, site.workers(2), Lock()
        self.listening: dict[str, Listener] = {}
        self.late: list[float] = []
        self.kills = self.flushes = self.trims = 0

    def flush(self, run):
        self.site.redis.flushall()
        self.flushes += 1

    def trim(self, run):
        self.trims += self.site.redis.xtrim(keys_of("", run.id)[0], 3, approximate=False) > 0

    def kill(self, run):
        """Kill the worker that performs the run; note when its readers learn that what they were told is void."""
        with self._lock:
            workers = "SELECT w.pid FROM flujo_attempts a JOIN flujo_workers w ON w.id = a.worker WHERE a.run_id = %(run)s AND a.status = 'running'"
            found = {row["pid"] for row in self.site.rows(workers, run=run.id)} & self.fleet.pids
            if not found:
                return
            [pid] = found
            heard = [
                self.listening[row["run_id"]] for row in self.site.rows(ON, pid=pid) if row["run_id"] in self.listening
            ]
            open_ones = [each for each in heard if any(each.texts.values())]
            for each in open_ones:
                each.void_at = 0.0
            began = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            self.kills += 1
            self.fleet.replace_dead()
            wait_until(lambda: all(each.void_at or each.end for each in open_ones), what=self.site.log)
            self.late += [each.void_at - began for each in open_ones if each.void_at]
            wait_until(lambda: self.site.works(self.fleet), what=self.site.log)


def one_round(number: int, trouble: Trouble) -> Listener:
    dice = random.Random(SEED * 1_000_000 + number)
    run = trouble.site.client.enqueue("stream_pipelines:talk", str(number))
    listener = trouble.listening[run.id] = Listener(run)
    with ThreadPoolExecutor(1) as one:
        listening = one.submit(listener.listen, dice)
        wait_until(lambda: any(listener.texts.values()) or listening.done(), what=trouble.site.log)
        time.sleep(dice.random() * 0.4)  # where in the run it happens
        faults: Mapping[int, object] = {0: trouble.kill}
        faults.get(number % 10, dice.choice([trouble.flush, trouble.trim, lambda _: None]))(run)
        listening.result(PATIENCE_S)
    del trouble.listening[run.id]
    result = run.result(timeout=PATIENCE_S)
    assert listener.end == {"status": "succeeded", "output": result.output}
    merged = {("", step.name): step.output for step in result.step_history}
    assert listener.final == merged
    return listener


def test_readers_lose_nothing_without_a_gap_and_see_nothing_twice(site, capsys):
    trouble = Trouble(site)
    with ThreadPoolExecutor(AT_ONCE) as rounds:
        heard = list(rounds.map(lambda number: one_round(number, trouble), range(ROUNDS)))
    late = sorted(trouble.late)
    with capsys.disabled(), suppress(IndexError):
        print(
            f"\n{ROUNDS} rounds: {trouble.kills} kills, {trouble.flushes} flushes, {trouble.trims} trims; {sum(each.gaps for each in heard)} gaps, "
            f"{sum(each.withdrawn for each in heard)} withdrawn; after a kill void within {late[len(late) // 2]:.2f} s (p50), {late[-1]:.2f} s at most"
        )
    assert trouble.kills >= ROUNDS // 20
    assert trouble.flushes
    assert trouble.trims
    assert late
    assert late[int(len(late) * 0.99) - 1] <= BRISK["lease_s"] + 1.0
