"""Flujo Worker: a pipeline of three steps, with default settings."""

import os
import sys
from pathlib import Path

from steps import BROKER, CONCURRENCY, DATABASE, main, perform, serve

from flujo_client import FlujoClient, Pipeline, Settings, Step, StepConfig

CONFIG = StepConfig(max_retries=5)


def first(run: str) -> list[str]:
    return [run, perform(run, 0, "")]


def second(before: list[str]) -> list[str]:
    return [before[0], perform(before[0], 1, before[1])]


def third(before: list[str]) -> str:
    return perform(before[0], 2, before[1])


three = Pipeline(
    [Step("first", first, config=CONFIG), Step("second", second, config=CONFIG), Step("third", third, config=CONFIG)]
)


def client():
    settings = Settings().with_services(os.environ[DATABASE], os.environ[BROKER])
    with FlujoClient(settings) as flujo:
        serve(lambda run: flujo.enqueue("side_flujo:three", run, metadata={"run": run}))


def worker(_slot):
    own = {"FLUJO_DATABASE_URL": os.environ[DATABASE], "FLUJO_BROKER_URL": os.environ[BROKER]}
    command = [sys.executable, "-m", "flujo_worker", "worker", f"--concurrency={CONCURRENCY}"]
    os.execve(command[0], command, {**os.environ, **own, "PYTHONPATH": str(Path(__file__).parent)})


if __name__ == "__main__":
    main(client=client, worker=worker)
