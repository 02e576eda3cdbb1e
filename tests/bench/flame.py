"""Draw a flame graph of one of our workers while W2 runs again and again. Needs py-spy, which is not a dependency."""

import argparse
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import psutil

from tests.bench.checkouts import checked_out
from tests.bench.sides import Services, Side, running
from tests.bench.workloads import PROCESSES


def main() -> None:
    options = argparse.ArgumentParser(prog="make bench-flame", description=__doc__)
    options.add_argument("--workload", default="W2")
    options.add_argument("--base", help="draw this revision instead of this tree")
    options.add_argument("--seconds", type=int, default=20)
    options.add_argument("--output", type=Path, default=Path("flame.svg"))
    options.add_argument("--py-spy", default=shutil.which("py-spy"), help="the program, where it is not on PATH")
    chosen = options.parse_args()
    if chosen.py_spy is None:
        sys.exit("py-spy is not installed: `pip install py-spy`, or name it with --py-spy")
    with ExitStack() as stack:
        drawn = Side("ours")
        if chosen.base:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            drawn = Side("base", python=stack.enter_context(checked_out(chosen.base, Path(folder))))
        services = stack.enter_context(Services())
        side = stack.enter_context(running(drawn, services, PROCESSES))
        recorder = subprocess.Popen(
            [
                *(chosen.py_spy, "record", f"--pid={worker(side.process.pid)}", f"--duration={chosen.seconds}"),
                *("--rate=100", "--threads", "--nonblocking", f"--output={chosen.output}"),
            ]
        )
        while recorder.poll() is None:
            side.measure(chosen.workload)
    sys.exit(recorder.returncode)


def worker(side: int) -> int:
    """One of a side's workers."""
    found = (each.pid for each in psutil.Process(side).children(recursive=True) if "flujo_worker" in each.cmdline())
    return next(found)


if __name__ == "__main__":
    main()
