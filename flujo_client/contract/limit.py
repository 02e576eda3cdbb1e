"""Concurrency limits: how many attempts may run at once under one name, in all workers together."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from flujo_client.contract.admission import OnFull

AttemptScope = Literal["global", "pipeline", "run", "provider"]

MOST_AT_ONCE = 1_000_000
LONGEST_NAME = 200
"""Characters of a limit's name once it is filled in."""


class Limit(BaseModel):
    """A limit on the attempts of steps with this limit that run at once, in all workers together.

    Args:
        name: the limit's name, or a template over the step's input, the context and `tenant`: `crm:{{ tenant }}` is a limit per tenant.
        at_once: how many attempts may run.
        scope: which attempts share the name: all (`global`), those of one pipeline, of one run, or of steps whose agents ask the
            same model provider.
        on_full: what happens to further attempts. `queue`: they wait in Postgres, without a worker, and begin in order. `drop`: they
            fail without a retry, with the code `LIMIT_REACHED`. `cancel_oldest`: the other run whose attempt asked first is cancelled,
            and they wait until it has ended.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Annotated[str, Field(min_length=1, max_length=10_000)]
    at_once: Annotated[int, Field(ge=1, le=MOST_AT_ONCE)]
    scope: AttemptScope = "global"
    on_full: OnFull = "queue"

    def __init__(self, name: str, at_once: int, *, scope: AttemptScope = "global", on_full: OnFull = "queue") -> None:
        super().__init__(name=name, at_once=at_once, scope=scope, on_full=on_full)
