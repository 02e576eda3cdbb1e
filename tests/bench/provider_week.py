"""A week of an ordinary provider in a minute or two: how many runs fail, and how much longer they take than without faults.

    PYTHONPATH=tests/acceptance python -m tests.bench.provider_week --runs 200

Two workers send mails through five agents, over real HTTP, on a machine that busy loops keep at full load, once undisturbed and once with
faults: of the calls, 10 % are refused (429 with `Retry-After: 1`), 3 % fail (500), 1 % are cut, 2 % slow, 1 % broken. Prints a table and one
JSON line. The exit code is 1 if the machine failed a run, or if the faults made the same work take more than 1.5 times as long.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random

import pytest

from flujo_client.embedded import Embedded
from tests.support.fleet import BRISK, Site
from tests.support.openai_server import OpenAIServer, Request, Said
from tests.support.services import temporary_folder

WORKERS, SLOTS, ANSWERS_S, SLOW_S = 2, 4, 0.5, 5.0
WEEK = {"refused": 0.10, "failed": 0.03, "cut": 0.01, "slow": 0.02, "broken": 0.01}
PATIENCE_S, MOST_RATIO = 1200.0, 1.5
EVENTS = ("flujo.breaker.opened", "flujo.rate.slowed", "attempt.starved", "worker.slowed")
FAILED_BY_MACHINE = """
SELECT count(*) AS n FROM flujo_runs r WHERE r.status <> 'succeeded' AND EXISTS (
    SELECT 1 FROM flujo_attempts a
    WHERE a.run_id = r.id AND a.status = 'failed' AND (a.reason = 'lost' OR a.error ->> 'type_name' LIKE '%%Time%%out%%')
)
"""
"""Of runs that did not succeed, those with an attempt that was lost or timed out: the provider is never slower than a step may be."""


class Provider:
    """Answers after half a second; so many of its calls go wrong, drawn from a seed."""

    def __init__(self, faults: dict[str, float], seed: int) -> None:
        self._faults, self._draw, self._lock = faults, Random(seed), threading.Lock()
        self.calls: Counter[str] = Counter()

    def __call__(self, request: Request) -> Said:
        with self._lock:
            kind = self._drawn()
            self.calls[kind] += 1
        if kind == "refused":
            return Said("slow down", status=429, headers=(("retry-after", "1"),))
        time.sleep(SLOW_S if kind == "slow" else ANSWERS_S)
        if kind == "failed":
            return Said("down", status=500)
        if kind == "cut":
            return Said("Dear", finish_reason="length")
        if not request.body.get("tools"):
            return Said("" if kind == "broken" else "Dear customer")
        return Said(arguments='{"is_polite": "per' if kind == "broken" else '{"is_polite": true}')

    def _drawn(self) -> str:
        at = self._draw.random()
        for kind, share in self._faults.items():
            at -= share
            if at < 0:
                return kind
        return "well"


@contextmanager
def loaded(processes: int) -> Iterator[None]:
    """Keep so many processors busy."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for each in loops:
            each.kill()
            each.wait()


def run_mails(site: Site, number: int) -> tuple[float, Counter[str]]:
    """Send the mails; return the seconds until the last has ended, and how they ended."""
    began = time.monotonic()
    runs = site.client.enqueue_many("week_pipelines:mails", [f"mail {number}" for number in range(number)])
    ended = Counter(run.result(PATIENCE_S, check=False).run_status for run in runs)
    return time.monotonic() - began, ended


def measure(number: int, faults: dict[str, float], seed: int) -> dict[str, object]:
    """Run the mails against a provider of its own, with services and workers of their own."""
    provider = Provider(faults, seed)
    with (
        OpenAIServer(provider) as server,
        temporary_folder() as folder,
        Embedded(folder / "bench") as services,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("OPENAI_BASE_URL", server.url)
        patch.setenv("OPENAI_API_KEY", "none")
        with Site(services, folder, worker={**BRISK, "lease_s": 6.0, "renew_s": 2.0, "concurrency": SLOTS}) as site:
            site.workers(WORKERS)
            seconds, ended = run_mails(site, number)
            told = site.rows(
                "SELECT name, count(*) AS n FROM flujo_events WHERE name = ANY(%(names)s) GROUP BY name",
                names=list(EVENTS),
            )
            [failed] = site.rows(FAILED_BY_MACHINE)
    events = dict.fromkeys(EVENTS, 0) | {row["name"]: row["n"] for row in told}
    figures = {"runs": dict(ended), "calls": dict(provider.calls), "events": events}
    return {"seconds": round(seconds, 1), "failed_by_machine": failed["n"], **figures}


def table(undisturbed: dict[str, object], week: dict[str, object]) -> Iterator[str]:
    """Yield the lines of a table: without faults, and with them."""
    yield f"{'':32}{'without faults':<24}with faults"
    for name, before in undisturbed.items():
        after = week[name]
        if isinstance(before, dict) and isinstance(after, dict):
            for part in {**before, **after}:
                yield f"{name + ': ' + part:32}{before.get(part, 0)!s:<24}{after.get(part, 0)}"
        else:
            yield f"{name.replace('_', ' '):32}{before!s:<24}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--load", type=int, default=os.cpu_count() or 1, help="busy loops")
    given = parser.parse_args(arguments)
    with loaded(given.load):
        undisturbed = measure(given.runs, {}, given.seed)
        week = measure(given.runs, WEEK, given.seed)
    ratio = round(float(str(week["seconds"])) / float(str(undisturbed["seconds"])), 2)
    print("\n".join(table(undisturbed, week)))
    print(f"with faults it took {ratio} times as long")
    print(json.dumps({"undisturbed": undisturbed, "week": week, "ratio": ratio}), flush=True)
    return int(ratio > MOST_RATIO or any(each["failed_by_machine"] for each in (undisturbed, week)))


if __name__ == "__main__":
    sys.exit(main())
