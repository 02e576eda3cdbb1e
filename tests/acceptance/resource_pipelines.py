"""Pipelines whose parts, and whose resources, note in the site's folder when they are asked, entered and left."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from acceptance_pipelines import ONCE, begin, folder
from pydantic import BaseModel, field_validator

from flujo_client import AgentProcessors, Pipeline, PluginOutcome, Step, StepConfig, validator


def note(what: str) -> None:
    """Write one line under the run that this is about."""
    run = structlog.contextvars.get_contextvars().get("run", "elsewhere")
    with (folder() / f"notes-{run}").open("a") as notes:
        notes.write(f"{what}\n")


@contextmanager
def pool() -> Iterator[dict[str, bool]]:
    """The resources: an attempt's own, open as long as it."""
    is_open = {"open": True}
    note("enter")
    try:
        yield is_open
    except BaseException as error:
        note(f"exit {type(error).__name__}")
        raise
    else:
        note("exit")
    finally:
        is_open["open"] = False


class Kept(BaseModel):
    """The context: it notes when the output comes in."""

    kept: dict[str, Any] | None = None

    @field_validator("kept")
    @classmethod
    def noted(cls, kept: Any) -> Any:
        if kept is not None:
            note("sink_to")
        return kept


def seen(part: str, data: Any, resources: dict[str, bool]) -> None:
    note(f"{part} {type(data).__name__}{'' if resources['open'] else ' too late'}")


def before(data: str, *, resources: Any) -> str:
    seen("prompt processor", data, resources)
    return data


async def answer(data: str, *, resources: Any) -> str:
    seen("agent", data, resources)
    return '```json\n{"n": 1,}\n```'


def after(data: Any, *, resources: Any) -> Any:
    seen("output processor", data, resources)
    return data


class Plugin:
    """Says that it was asked."""

    def __init__(self, name: str) -> None:
        self.name = name

    def validate(self, data: Any, *, resources: Any) -> PluginOutcome:
        seen(self.name, data, resources)
        return PluginOutcome(success=True)


@validator
def judge(output: Any, *, context: Kept, resources: Any) -> bool:
    seen("validator", output, resources)
    return context.kept is None


every_part = Pipeline(
    [
        Step(
            "s",
            answer,
            processing={"aop": "full", "schema": {"type": "object"}},
            processors=AgentProcessors([before], [after]),
            plugins=[Plugin("late plugin"), (Plugin("early plugin"), 5)],
            validators=[judge],
            sink_to="kept",
        )
    ],
    context_model=Kept,
    resources=pool,
)
ORDER = [
    "enter",
    "prompt processor str",
    "agent str",
    "output processor dict",
    "early plugin dict",
    "late plugin dict",
    "validator dict",
    "sink_to",
    "exit",
]


async def wait(trail: list[str], *, resources: Any) -> list[str]:
    run, step, _ = begin()
    while not (folder() / f"gate-{run}").exists():  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(0.02)
    return [*trail, step, f"open: {resources['open']}"]


waiting = Pipeline([Step("gate", wait, config=ONCE)], resources="resource_pipelines:pool")
too_slow = Pipeline([Step("gate", wait, config=StepConfig(max_retries=1, timeout_s=1.0))], resources=pool)
bare = Pipeline([Step("gate", wait, config=ONCE)])
