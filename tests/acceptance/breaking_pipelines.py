"""Steps that break the process they run in, and steps that need it whole."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import resource
import time
from pathlib import Path
from typing import Any

from acceptance_pipelines import begin, folder

from flujo_client import Pipeline, Step, StepConfig

kept: list[Any] = []


def close_descriptors() -> None:
    os.closerange(3, 1000)


def open_all() -> None:
    while True:
        try:
            kept.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return


def lower_the_limit() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))


def replace_dumps() -> None:
    json.dumps = lambda *_, **__: "{}"


def is_open(run: str) -> bool:
    return (folder() / f"gate-{run}").exists()


def breaking(act: Any, *, always: bool) -> Pipeline[Any, Any]:
    def break_process(trail: Any) -> Any:
        run, *_ = begin()
        if always or not is_open(run):
            act()
        return trail

    return Pipeline([Step("break", break_process, config=StepConfig(max_retries=0, timeout_s=60))])


async def wait_and_open(_: Any) -> Any:
    run, *_ = begin()
    while not is_open(run):  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(0.02)
    return [Path(os.devnull).open("rb").name, json.dumps({"a": 1})]  # noqa: ASYNC230 - it needs a descriptor


def end_forks(_: Any) -> list[int | None]:
    begin()
    asleep = [multiprocessing.get_context("fork").Process(target=time.sleep, args=(40,)) for _ in range(2)]
    for each in asleep:
        each.start()
    asleep[0].terminate()
    asleep[1].join(0.2)
    asleep[1].terminate()
    for each in asleep:
        each.join(20)
    return [each.exitcode for each in asleep]


ends_forks = Pipeline([Step("end", end_forks, config=StepConfig(max_retries=0, timeout_s=60))])
closes_descriptors = breaking(close_descriptors, always=False)
opens_all = breaking(open_all, always=False)
lowers_the_limit = breaking(lower_the_limit, always=False)
replaces_dumps = breaking(replace_dumps, always=False)
always_closes_descriptors = breaking(close_descriptors, always=True)
always_opens_all = breaking(open_all, always=True)
always_lowers_the_limit = breaking(lower_the_limit, always=True)
always_replaces_dumps = breaking(replace_dumps, always=True)
opening = Pipeline([Step("opening", wait_and_open, config=StepConfig(max_retries=0, timeout_s=120))])
opening_at_once = Pipeline([Step("opening", lambda _: Path(os.devnull).read_text())])
