"""Concurrency limits: how many attempts may run at once under one name, in all workers together."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST_AT_ONCE = 1_000_000
LONGEST_NAME = 200
"""Characters of a limit's name once it is filled in."""


class Limit(BaseModel):
    """A limit on the attempts of steps with this limit that run at once, in all workers together.

    Further attempts wait in Postgres, without a worker, and begin in order.

    Args:
        name: the limit's name, or a template over the step's input, the context and `tenant`: `crm:{{ tenant }}` is a limit per tenant.
        at_once: how many attempts may run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Annotated[str, Field(min_length=1, max_length=10_000)]
    at_once: Annotated[int, Field(ge=1, le=MOST_AT_ONCE)]

    def __init__(self, name: str, at_once: int) -> None:
        super().__init__(name=name, at_once=at_once)
