"""Absurd: a durable task of three steps, on its synchronous worker, with a claim timeout shorter than the default of 120 seconds."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from absurd_sdk import Absurd
from steps import CONCURRENCY, DATABASE, LEASE_S, STEPS, main, perform, serve

URL = os.environ[DATABASE]


def prepare():
    control = Path(sys.executable).with_name("absurdctl")
    for arguments in (["init"], ["create-queue", "default"]):
        subprocess.run([control, *arguments, "-d", URL], check=True)


def worker(_slot):
    app = Absurd(URL)

    @app.register_task("three")
    def three(params, ctx):
        given = ""
        for step in range(STEPS):
            given = ctx.step(f"act{step}", lambda step=step, given=given: perform(params["run"], step, given))

    signal.signal(signal.SIGTERM, lambda *_: app.stop_worker())
    app.start_worker(claim_timeout=LEASE_S, concurrency=CONCURRENCY)


def enqueue(run):
    app = Absurd(URL)  # a new connection for each, because none survives a restart of Postgres
    try:
        app.spawn(
            "three",
            {"run": run},
            queue="default",
            max_attempts=20,
            retry_strategy={"kind": "fixed", "base_seconds": 1},
        )
    finally:
        app.close()


if __name__ == "__main__":
    main(prepare=prepare, client=lambda: serve(enqueue), worker=worker)
