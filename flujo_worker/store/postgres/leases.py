"""The leases of workers on Postgres."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict

from flujo_worker.ports import Member, Renewal
from flujo_worker.store.migrate import migrations
from flujo_worker.store.postgres.pool import InPostgres
from flujo_worker.store.postgres.statements import Connection, execute
from flujo_worker.store.shared_rules import HANDED_BACK_MOST, HANDED_BACK_OFTEN


class LeasesInPostgres(InPostgres):
    """The port `LeaseStore`."""

    def register_worker(
        self, member: Member, lease_s: float, *, old: str | None = None, held: Collection[str] = ()
    ) -> set[str]:
        queues, schema = None if member.queues is None else list(member.queues), migrations()[-1].version
        own = {"queues": queues, "schema": schema, "lease_s": lease_s, "old": old, "keys": sorted(held)}
        parameters = asdict(member) | own

        def register(connection: Connection) -> set[str]:
            with connection.transaction():
                if held:
                    execute(connection, "hold_limits_of", parameters)
                return {row["key"] for row in execute(connection, "register_worker", parameters)}

        return self._pool.with_retry(register)

    def renew(self, worker: str, lease_s: float, held: Mapping[str, int]) -> Renewal | None:
        parameters = {"id": worker, "lease_s": lease_s, "keys": list(held), "fences": list(held.values())}
        rows = self._pool.rows("renew", parameters)
        return Renewal(set(rows[0]["lost"]), rows[0]["is_to_stop"], rows[0]["sharing"]) if rows else None

    def lost_among(self, worker: str, held: Mapping[str, int]) -> set[str]:
        parameters = {"id": worker, "keys": list(held), "fences": list(held.values())}
        return {row["key"] for row in self._pool.rows("lost_among", parameters)}

    def release_unowned(
        self, worker: str, kept: Collection[str], older_s: float, *, how: str | None = None
    ) -> set[str]:
        parameters = {"worker": worker, "kept": sorted(kept), "older_s": older_s, "how": how}
        return {row["key"] for row in self._pool.rows("release_unowned", parameters)}

    def hand_back(self, worker: str, keys: Collection[str], *, is_broken: bool = False) -> set[str]:
        parameters = {"worker": worker, "keys": sorted(keys), "often": HANDED_BACK_OFTEN, "most": HANDED_BACK_MOST}
        parameters["is_broken"] = is_broken
        return {row["key"] for row in self._pool.rows("hand_back", parameters)}

    def deregister_worker(self, worker: str) -> None:
        self._pool.do("deregister_worker", {"id": worker})

    def neighbours(self, host: str) -> list[tuple[str, int]]:
        return [(row["id"], row["pid"]) for row in self._pool.rows("neighbours", {"host": host})]

    def bury(self, worker: str, max_lost: int) -> set[str]:
        return {row["key"] for row in self._pool.rows("bury", {"id": worker, "max_lost": max_lost})}
