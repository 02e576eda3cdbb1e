"""The canaries of value keys on Postgres."""

from __future__ import annotations

import base64

from flujo_client.serial import Packed, header_of_key
from flujo_worker.store.postgres.pool import RetryingPool


class CanariesInPostgres(RetryingPool):
    """The port `Canaries`."""

    def canaries(self) -> dict[str, Packed]:
        return {row["id"]: Packed.from_bytes(base64.b64decode(row["canary"])) for row in self._rows("canaries", {})}

    def write_canary(self, key_id: str, canary: Packed) -> None:
        self._do("write_canary", {"id": key_id, "canary": base64.b64encode(canary.stored).decode("ascii")})

    def newest_encrypted(self, key_id: str) -> Packed | None:
        rows = self._rows("newest_encrypted", {"header": header_of_key(key_id)}, binary=True)
        return Packed.from_bytes(rows[0]["input"]) if rows else None
