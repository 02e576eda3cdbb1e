"""How long after kill -9 of its worker a step runs again: p50, p99 and the worst, at default settings.

    python -m tests.bench.recovery --kills 20 [--busy 20]

Three ways to die: *alone*, the only worker, replaced at once as a supervisor would; *idle fleet*, one of three, with nothing else to do;
*busy fleet*, one of three while runs of quick steps keep all of them at work. `--elsewhere` keeps workers from seeing that a
process of their own machine is gone, as if each ran on one of its own. `--busy` runs so many busy loops beside them. When alone, the time
since the successor has registered is measured too: how long a process takes to start is up to the machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from flujo_client.embedded import Embedded
from flujo_client.embedded.local import Fleet
from tests.support.fleet import STEPS, Site, SiteFleet, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

AT_REST = {"alone": 1, "idle fleet": 3, "busy fleet": 3}
APART = """
import runpy, sys
from flujo_worker.liveness import neighbours
neighbours.machine = lambda: ""
sys.argv[0] = "flujo_worker"
runpy.run_module("flujo_worker", run_name="__main__")
"""


def measure(site: Site, case: str, kills: int) -> tuple[list[float], list[float]]:
    """Kill that often, and give how many seconds passed each time until the step ran again: since the kill, and since the newest worker is up."""
    fleet, took, since_start, stop = site.workers(AT_REST[case]), [], [], threading.Event()
    busy = threading.Thread(target=keep_busy, args=(site, stop), daemon=True)
    if case == "busy fleet":
        busy.start()
    for _ in range(kills):
        wait_until(lambda: fleet.pids <= site.live_pids(), what=site.log)
        run = site.enqueue("waiting")
        first = site.wait_for_execution(run.id, "gate")
        time.sleep(2 * (len(took) % 10) / 10)  # anywhere between two renewals
        os.kill(first.pid, signal.SIGKILL)
        killed = time.monotonic()
        wait_until(lambda pid=first.pid: pid not in fleet.pids, what="the killed worker still runs")
        fleet.replace_dead()
        site.wait_for_execution(run.id, "gate", times=2)
        took.append(time.monotonic() - killed)
        [newest] = site.rows(
            "SELECT extract(epoch FROM clock_timestamp() - max(started_at))::float8 AS age FROM flujo_workers"
        )
        since_start.append(newest["age"])
        site.open_gate(run.id)
        run.result(timeout=60)
    stop.set()
    if busy.is_alive():
        busy.join()
    site.dismiss()
    return took, since_start


def keep_busy(site: Site, stop: threading.Event) -> None:
    while not stop.is_set():
        runs = [site.enqueue("lingering") for _ in range(10)]
        for run in runs:
            run.result(timeout=120)


@contextmanager
def load(loops: int) -> Iterator[None]:
    """So many busy loops."""
    hogs = [multiprocessing.Process(target=hog, daemon=True) for _ in range(loops)]
    for each in hogs:
        each.start()
    try:
        yield
    finally:
        for each in hogs:
            each.kill()


def launch_apart(_: Fleet, arguments: Sequence[str], environment: Mapping[str, str], out: IO[bytes] | None) -> object:
    return subprocess.Popen([sys.executable, "-c", APART, *arguments], env=environment, stdout=out, stderr=out)


def hog() -> None:
    while True:
        pass


def shown(took: list[float]) -> dict[str, float]:
    ordered = sorted(took)
    worst = ordered[-1]
    p99 = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    return {"p50": round(statistics.median(ordered), 1), "p99": round(p99, 1), "max": round(worst, 1)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--case", choices=AT_REST, action="append")
    options.add_argument("--busy", type=int, default=0)
    options.add_argument("--elsewhere", action="store_true")
    chosen = options.parse_args()
    sys.path.append(str(STEPS))
    SiteFleet.launch = launch_apart if chosen.elsewhere else Fleet.launch  # a start is measured too: none is forked
    with tempfile.TemporaryDirectory() as folder, load(chosen.busy):
        services = Embedded(Path(folder) / "flujo")
        services.start()
        try:
            for case in chosen.case or AT_REST:
                (place := Path(folder) / case.replace(" ", "-")).mkdir()
                with Site(services, place) as site:
                    took, since_start = measure(site, case, chosen.kills)
                told = {
                    "case": case,
                    "elsewhere": chosen.elsewhere,
                    "busy loops": chosen.busy,
                    "kills": len(took),
                    **shown(took),
                    **({"since the successor's start": shown(since_start)} if case == "alone" else {}),
                    "load": os.getloadavg()[0],
                }
                print(json.dumps({**told, "cores": os.cpu_count(), "machine": platform.machine()}), flush=True)
        finally:
            services.stop()


if __name__ == "__main__":
    main()
