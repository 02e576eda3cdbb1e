"""The side of bare Celery: one prefork worker, or as many threads workers as we use."""

from __future__ import annotations

import argparse
import subprocess
import sys
from contextlib import ExitStack
from functools import partial

from tests.bench import bare
from tests.bench.pipelines import prose
from tests.bench.protocol import serve, timed
from tests.bench.workloads import CARRIED, CARRIES, FANS, ITERATIONS, PROCESSES, W1_RUNS, W1_STEPS, W2_RUNS, W2_STEPS

COMMAND = [
    *(sys.executable, "-W", "ignore", "-m", "celery", "-A", "tests.bench.bare", "worker"),
    *("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"),
]
WORKLOADS = {
    "W1": partial(timed, "W1", W1_STEPS, lambda: bare.send_hops(1, W1_STEPS), W1_RUNS),
    "W2": partial(timed, "W2", W2_RUNS * W2_STEPS, lambda: bare.send_chains(W2_RUNS, W2_STEPS)),
    "W2 hops": partial(timed, "W2 hops", W2_RUNS * W2_STEPS, lambda: bare.send_hops(W2_RUNS, W2_STEPS)),
    **{f"W3 {n}": partial(timed, f"W3 {n}", n, partial(bare.send_chord, n)) for n in FANS},
    "W4": partial(timed, "W4", 2 * ITERATIONS, lambda: bare.send_hops(1, 2 * ITERATIONS)),
    **{
        f"W5 {name}": partial(
            timed, f"W5 {name}", CARRIES, partial(bare.send_carry, {"text": prose(size), "count": 0}, CARRIES)
        )
        for name, size in CARRIED.items()
    },
}


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--pool", choices=["prefork", "threads"])
    options.add_argument("--processes", type=int, default=PROCESSES)
    chosen = options.parse_args()
    is_prefork = chosen.pool == "prefork"
    each = [f"--pool={chosen.pool}", f"--concurrency={chosen.processes if is_prefork else 8}"]
    bare.done.flushdb()
    with ExitStack() as stack:
        for number in range(1 if is_prefork else chosen.processes):
            command = [*COMMAND, *each, f"--hostname=b{number}@bench"]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        bare.send_chains(PROCESSES * 4, 2)
        bare.send_hops(PROCESSES * 4, 2)
        serve(WORKLOADS)


if __name__ == "__main__":
    main()
