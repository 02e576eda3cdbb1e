"""Values that are only pointed at, fetched and proved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_client.errors import FlujoError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flujo_client.serial import Packed
    from flujo_worker.ports import Ledger


def fetched(ledger: Ledger, values: Iterable[Packed | None]) -> dict[str, Packed]:
    """Fetch what the references among these values point at, by digest.

    Raises:
        FlujoError: one is missing, or does not fit its digest; code SNAPSHOT_LOST.
    """
    wanted = {packed.digest for packed in values if packed is not None and packed.is_reference}
    found = ledger.fetch(wanted) if wanted else {}
    for digest in wanted:
        if digest not in found or not found[digest].matches(digest):
            raise FlujoError(f"snapshot {digest[:12]} is missing or does not fit its digest", code="SNAPSHOT_LOST")
    return found
