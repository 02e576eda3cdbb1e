"""Which run is meant: its id, or so much of it that no other run has the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_client.errors import ClientError, RunNotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flujo_client.api.client import FlujoClient
    from flujo_client.api.handle import RunHandle
    from flujo_client.contract.records import RunRecord

CANDIDATES = 10
RUN_OF_RUN = "."
"""What a child run's id has and no other."""


def find_run(client: FlujoClient, prefix: str) -> RunHandle:
    """Find the run whose id begins so.

    Raises:
        RunNotFound: no run's id begins so.
        ClientError: several do; they are listed.
    """
    found = client.list_runs(prefix=prefix, parent=_parent(prefix), limit=CANDIDATES + 1)
    return _only(client, found, prefix, f"no run's id begins with '{prefix}'")


def find_part(client: FlujoClient, part: str) -> RunHandle:
    """Find the run that has this anywhere in its id; raises as `find_run` does."""
    found = client.list_runs(part=part, parent=_parent(part), limit=CANDIDATES + 1)
    found = found or client.list_runs(part=part, limit=CANDIDATES + 1)  # it may stand in what only a child run's id has
    return _only(client, found, part, f"no run's id has '{part}' in it")


def _parent(answer: str) -> str | None:
    """A child run's id begins with its parent's: without this a run with child runs could only be meant by its whole id."""
    return None if RUN_OF_RUN in answer else ""


def _only(client: FlujoClient, found: Sequence[RunRecord], prefix: str, none: str) -> RunHandle:
    if not found:
        raise RunNotFound(none, suggestion="`flujo lens list` shows the runs there are")
    if len(found) > 1 and all(run.id != prefix for run in found):
        lines = [f"{run.id}  {run.name}  {run.status}" for run in found[:CANDIDATES]]
        more = ["…"] if len(found) > CANDIDATES else []
        raise ClientError(
            "\n  ".join([f"'{prefix}' may be any of these runs:", *lines, *more]),
            code="AMBIGUOUS_RUN",
            suggestion="write more of the id",
        )
    return client.get_run(prefix if len(found) > 1 else found[0].id)
