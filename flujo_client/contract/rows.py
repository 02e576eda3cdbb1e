"""How rows of the tables read as records: for the client, and for workers that tell hooks what came of a run. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flujo_client.contract.outcome import Fault
from flujo_client.contract.records import AttemptRecord, RunRecord, ScopeRecord
from flujo_client.serial import Packed

if TYPE_CHECKING:
    from collections.abc import Mapping

    Row = Mapping[str, Any]


def packed(body: bytes | None) -> Packed | None:
    """Read a value's column."""
    return None if body is None else Packed.from_bytes(body)


def fault_of(tree: Mapping[str, Any] | None) -> Fault | None:
    """Read an error's column."""
    return None if tree is None else Fault.from_tree(tree)


def run_record(row: Row) -> RunRecord:
    """Read a row of `run.sql` or `runs.sql`."""
    values = {key: packed(row[key]) for key in ("input", "output", "context")}
    return RunRecord(**{**row, **values, "error": fault_of(row["error"])})


def attempt_record(row: Row) -> AttemptRecord:
    """Read a row of `attempts.sql`."""
    rest = {key: value for key, value in row.items() if key not in ("error", "output", "metadata")}
    return AttemptRecord(
        **rest, output=packed(row["output"]), fault=fault_of(row["error"]), metadata=row["metadata"] or {}
    )


def scope_record(row: Row) -> ScopeRecord:
    """Read a row of `scopes.sql`."""
    rest = {key: value for key, value in row.items() if key not in ("error", "output")}
    return ScopeRecord(**rest, output=packed(row["output"]), fault=fault_of(row["error"]))
