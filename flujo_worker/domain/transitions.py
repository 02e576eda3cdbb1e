"""Every allowed transition, in one table. `decide` may emit no other; the stores refuse what they can of the rest."""

from flujo_worker.errors import IllegalTransition

RUN: dict[str, frozenset[str]] = {
    "queued": frozenset({"running", "parked", "failed", "cancelled", "expired"}),
    "running": frozenset({"succeeded", "failed", "parked", "cancelled", "expired"}),
    "parked": frozenset({"running", "cancelled", "expired", "succeeded", "failed"}),
    "succeeded": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
    "expired": frozenset(),
}

SCOPE: dict[str, frozenset[str]] = {
    "open": frozenset({"open", "succeeded", "failed", "cancelled"}),
    "succeeded": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}

ATTEMPT: dict[str, frozenset[str]] = {
    "ready": frozenset({"queued", "running", "cancelled"}),
    "queued": frozenset({"ready", "queued", "running", "cancelled"}),
    "running": frozenset({"running", "queued", "ready", "succeeded", "failed", "cancelled"}),
    "paused": frozenset({"ready", "cancelled"}),
    "succeeded": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}


def require(table: dict[str, frozenset[str]], before: str, after: str) -> None:
    """Raise IllegalTransition unless `after` may follow `before`."""
    if after not in table[before]:
        raise IllegalTransition(f"{before} → {after}")
