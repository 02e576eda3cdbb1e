"""The monkey on DBOS, installed from wheels into an environment of its own: `python -m tests.chaos.dbos_side --seed 1 --duration 60`.

A worker that was killed is replaced by a process with the same executor id, which recovers what it ran, as DBOS' documentation
advises where Conductor is not used.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from pathlib import Path

from flujo_client.embedded.local import Fleet
from tests.bench.peers.installing import install, version
from tests.chaos import beside

STATES = "SELECT workflow_uuid, status FROM dbos.workflow_status"
PROGRAM = Path(__file__).with_name("dbos_workflows.py")


class DbosFleet(Fleet):
    """Workers with executor ids: one that starts takes the id of one that is gone."""

    def __init__(self, settings, python, **options):
        super().__init__(settings, **options)
        self._python, self._executors = python, {}

    def launch(self, arguments, environment, out):
        taken = {self._executors.get(process.pid) for process in self.processes}
        executor = next(name for name in (f"worker{n}" for n in range(len(taken) + 1)) if name not in taken)
        command = [self._python, PROGRAM, executor]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self._executors[process.pid] = executor
        return process


class Dbos(beside.Side):
    faults = beside.FAULTS | {
        "connections to Postgres cut",
        "Postgres out of connections",
        "a run that kills its worker",
    }

    def __init__(self, python):
        self._python, self.name = python, f"DBOS {version(python, 'dbos')}"

    def prepare(self, site, log, workers):
        os.environ["DBOS_SIDE_DATABASE"] = site.services.database_url
        self._client = subprocess.Popen(
            [self._python, PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("wb"), text=True
        )
        return DbosFleet(site.settings, self._python, processes=workers, log=log)

    def enqueue(self, work):
        self._client.stdin.write(f"{work}\n")
        self._client.stdin.flush()
        return self._client.stdout.readline() == "accepted\n"

    def enqueue_killer(self):
        self.enqueue(f"killer {uuid.uuid4()}")

    def explain(self, url, lost):
        return Counter(status for work, status in beside.ask(url, STATES) if work in lost)

    def close(self):
        self._client.stdin.close()
        self._client.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        done = install(Path(folder), ("dbos",))
        if done.returncode:
            sys.exit(f"DBOS does not install from wheels:\n{done.stderr.strip()}")
        beside.main(Dbos(Path(folder) / "bin" / "python"))
