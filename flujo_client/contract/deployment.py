"""What Postgres and Redis say of themselves and of the work in them: the facts that `flujo doctor` judges."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParkedPipeline:
    """A pipeline that no worker can carry on: how many of its runs are parked, and why one of them is."""

    reference: str
    reason: str
    runs: int


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """What the database says.

    Attributes:
        version: of the server, such as `18.1`.
        clock: its time, in unix seconds.
        connections: how many clients are connected, of at most `max_connections`.
        not_granted: what the role may not do: privileges on tables of ours.
        waiting: how many attempts wait in each queue.
        parked: pipelines with parked runs.
        models: which agents of the pipelines that ran lately name.
    """

    version: str
    clock: float
    connections: int
    max_connections: int
    not_granted: tuple[str, ...] = ()
    waiting: tuple[tuple[str, int], ...] = ()
    parked: tuple[ParkedPipeline, ...] = ()
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """What Redis says; None where it does not.

    Attributes:
        version: of the server.
        clock: its time, in unix seconds.
        eviction: what it does when its memory is full, such as `noeviction`.
        is_kept: whether it writes what it holds to disk.
    """

    version: str | None = None
    clock: float | None = None
    eviction: str | None = None
    is_kept: bool | None = None
