"""What Postgres and Redis report of themselves and of their work: the facts that `flujo doctor` judges."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParkedPlan:
    """Parked runs that use one plan of a pipeline.

    Attributes:
        reference: the pipeline's.
        fingerprint: the plan's, its first 12 characters.
        build: the build name of workers with the plan's code; None if they have none.
        runs: the number of parked runs.
        is_pinned: only code of that plan may continue them.
        is_live: a worker is alive that is of that build or has loaded the plan.
        reason: why one of them is parked.
    """

    reference: str
    fingerprint: str
    build: str | None
    runs: int
    is_pinned: bool
    is_live: bool
    reason: str = ""

    @property
    def change(self) -> str | None:
        """Return how runs that are pinned to code that no live worker has can continue; None for others."""
        if not self.is_pinned or self.is_live:
            return None
        build = "" if self.build is None else f" --build {self.build}"
        return f"flujo worker{build}, with that code; or flujo runs upgrade --pipeline {self.reference}"


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A session of Postgres whose transaction holds locks on Flujo's tables.

    Attributes:
        pid: of its server process.
        user: its role.
        application: the name that it gave itself.
        state: such as `idle in transaction`.
        age_s: seconds since its transaction began; None if the asking role may not see that.
    """

    pid: int
    user: str
    application: str
    state: str
    age_s: float | None

    def __str__(self) -> str:
        since = "" if self.age_s is None else f", {self.state} for {self.age_s:.0f} s"
        return f"pid {self.pid} ({self.user}, {self.application}{since})"


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """Facts that the database reports.

    Attributes:
        version: of the server, such as `18.1`.
        clock: its time, in unix seconds.
        connections: the number of connected clients, of at most `max_connections`.
        not_granted: the privileges on flujo's tables that the role does not have.
        waiting: the number of attempts that wait in each queue.
        parked: plans that parked runs use.
        models: those that the agents of recently run pipelines name.
    """

    version: str
    clock: float
    connections: int
    max_connections: int
    not_granted: tuple[str, ...] = ()
    waiting: tuple[tuple[str, int], ...] = ()
    parked: tuple[ParkedPlan, ...] = ()
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """What Redis reports; None where it does not.

    Attributes:
        version: of the server.
        clock: its time, in unix seconds.
        eviction: what it does when its memory is full, such as `noeviction`.
        is_kept: whether it writes what it holds to disk.
        not_granted: the commands, keys and channels that are needed and that its user may not use.
        rules: the rules of a user that may use all of them, for ACL SETUSER.
    """

    version: str | None = None
    clock: float | None = None
    eviction: str | None = None
    is_kept: bool | None = None
    not_granted: tuple[str, ...] = ()
    rules: str = ""
