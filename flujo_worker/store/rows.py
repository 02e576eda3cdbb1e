"""What is read back from rows: envelopes and scopes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flujo_client.contract.envelope import Envelope, Ticket
from flujo_client.contract.outcome import Fault
from flujo_client.serial import Packed
from flujo_worker.domain.values import ChildRunRow, ScopeRow

if TYPE_CHECKING:
    from collections.abc import Mapping


def envelope_of(row: Mapping[str, Any]) -> Envelope:
    """Rebuild an envelope from a row of `due.sql` or `envelopes.sql`."""
    ticket = Ticket(
        run=row["run"],
        reference=row["reference"],
        fingerprint=row["fingerprint"],
        queue=row["run_queue"],
        priority=row["priority"],
        deadline=row["deadline"],
        trace_parent=row["trace_parent"],
        tenant=row["tenant"],
        root=row["root"],
        aros=row["aros"],
        limits=row["limits"],
    )
    return Envelope(
        ticket=ticket,
        address=row["address"],
        step=row["step"],
        number=row["number"],
        version=row["version"],
        input=Packed.from_bytes(row["input"]),
        context=_packed(row["context"]),
        guidance=row["guidance"],
        queue=row["queue"],
        kind=row["kind"],
        lanes=row["lanes"],
    )


def scope_of(row: Mapping[str, Any]) -> ScopeRow:
    """Read a scope from a row of `scope.sql` or `children.sql`."""
    return ScopeRow(
        address=row["address"],
        parent=row["parent"],
        kind=row["kind"],
        step=row["step"],
        name=row["name"],
        place=row["place"],
        status=row["status"],
        cursor=row["cursor"],
        version=row["version"],
        output=Packed.from_bytes(row["output"]),
        context=_packed(row["context"]),
        patch=_packed(row["patch"]),
        lanes=row["lanes"],
        fault=None if row["error"] is None else Fault.from_tree(row["error"]),
        metadata=row["metadata"],
    )


def child_run_of(row: Mapping[str, Any]) -> ChildRunRow:
    """Read a child run from a row of `child_run.sql`."""
    return ChildRunRow(
        run=row["id"],
        parent_run=row["parent_run"],
        parent_address=row["parent_address"],
        status=row["status"],
        reason=row["reason"],
        fault=None if row["error"] is None else Fault.from_tree(row["error"]),
        output=Packed.from_bytes(row["output"]),
        context=_packed(row["context"]),
    )


def _packed(body: bytes | None) -> Packed | None:
    return None if body is None else Packed.from_bytes(body)
