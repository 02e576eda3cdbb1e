"""What Postgres and Redis report of themselves and of their work: the facts that `flujo doctor` judges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from flujo_client.errors import SchemaVersionError

FIRST_MIGRATION: Final = "schema"


class SchemaVersion(NamedTuple):
    """The schema of a database."""

    version: int
    """The newest migration that was applied; 0 if there is none."""
    oldest: int
    """The oldest schema whose code works with the database; 0: the schema of the previous release."""
    first: str | None
    """The name of its first migration; None if there is none."""

    def require(self, needed: int, known: int) -> None:
        """Raise SchemaVersionError, with what to do, for a database with which code that needs `needed` and knows `known` cannot work."""
        self.refuse_unless_known(known)
        if self.version < needed:
            message = f"the database's schema is {self.version}, this code needs {needed}"
            raise SchemaVersionError(message, suggestion="run `flujo migrate`")

    def refuse_unless_known(self, known: int) -> None:
        """Raise SchemaVersionError for a database that code which knows the schema `known` can neither use nor migrate."""
        if self.first not in (None, FIRST_MIGRATION):
            message = f"the database's schema is {self.version} of a version before 0.1, which cannot be migrated"
            way_out = "let its runs end under that version, and run `flujo migrate` on a new, empty database"
            raise SchemaVersionError(message, suggestion=way_out)
        if self.oldest > known:
            message = f"the database's schema is {self.version}, which needs code that knows schema {self.oldest}; this code knows {known}"
            raise SchemaVersionError(message, suggestion="upgrade flujo-worker here")


@dataclass(frozen=True, slots=True)
class ParkedPlan:
    """Parked runs that use one plan of a pipeline."""

    reference: str
    fingerprint: str
    """The first 12 characters of the plan's fingerprint."""
    build: str | None
    """The build name of workers with the plan's code; None if they have none."""
    runs: int
    is_pinned: bool
    """Whether only code with that plan may continue them."""
    is_live: bool
    """Whether a live worker has that build or has loaded the plan."""
    reason: str = ""
    """The reason why one of them is parked."""

    @property
    def change(self) -> str | None:
        """Return a way to continue runs that are pinned to code that no live worker has; None for other runs."""
        if not self.is_pinned or self.is_live:
            return None
        build = "" if self.build is None else f" --build {self.build}"
        return f"flujo worker{build}, with that code; or flujo runs upgrade --pipeline {self.reference}"


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A session of Postgres whose transaction holds locks on Flujo's tables."""

    pid: int
    """The id of its server process."""
    user: str
    """The role that opened it."""
    application: str
    """The name that the client gave itself."""
    state: str
    """The state of the session, such as `idle in transaction`."""
    age_s: float | None
    """Seconds since its transaction began; None if the asking role may not see that."""

    def __str__(self) -> str:
        since = "" if self.age_s is None else f", {self.state} for {self.age_s:.0f} s"
        return f"pid {self.pid} ({self.user}, {self.application}{since})"


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """Facts that the database reports."""

    version: str
    """The version of the server, such as `18.1`."""
    clock: float
    """The server's time, in unix seconds."""
    connections: int
    """The number of connected clients, of at most `max_connections`."""
    max_connections: int
    is_read_only: bool = False
    """Whether the server accepts no writes, such as a standby."""
    not_granted: tuple[str, ...] = ()
    """The privileges on flujo's tables that the role does not have."""
    waiting: tuple[tuple[str, int], ...] = ()
    """The number of attempts that wait in each queue."""
    parked: tuple[ParkedPlan, ...] = ()
    models: tuple[str, ...] = ()
    """The models that the agents of recently run pipelines name."""


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """The facts that Redis reports; None for a fact that it does not report."""

    version: str | None = None
    """The version of the server."""
    clock: float | None = None
    """The server's time, in unix seconds."""
    eviction: str | None = None
    """The policy for a full memory, such as `noeviction`."""
    is_kept: bool | None = None
    """Whether Redis writes its data to disk."""
    not_granted: tuple[str, ...] = ()
    """The commands, keys and channels that Flujo needs and the user may not use."""
    rules: str = ""
    """The rules, for ACL SETUSER, of a user that may use all of them."""
