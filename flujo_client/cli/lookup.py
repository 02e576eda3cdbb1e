"""Which run is meant: its id, or as much of its beginning as no other run shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_client.errors import ClientError, RunNotFound

if TYPE_CHECKING:
    from flujo_client.client import FlujoClient
    from flujo_client.handle import RunHandle

CANDIDATES = 10
RUN_OF_RUN = "."
"""What a child run's id has and no other."""


def find_run(client: FlujoClient, prefix: str) -> RunHandle:
    """Find the run.

    Raises:
        RunNotFound: no run's id begins so.
        ClientError: several do; they are listed.
    """
    may_be_child = RUN_OF_RUN in prefix  # else a run with child runs could only be meant by its whole id
    found = client.list_runs(prefix=prefix, parent=None if may_be_child else "", limit=CANDIDATES + 1)
    if not found:
        raise RunNotFound(
            f"no run's id begins with '{prefix}'", suggestion="`flujo lens list` shows the runs there are"
        )
    if len(found) > 1 and all(run.id != prefix for run in found):
        lines = [f"{run.id}  {run.name}  {run.status}" for run in found[:CANDIDATES]]
        more = ["…"] if len(found) > CANDIDATES else []
        raise ClientError(
            "\n  ".join([f"'{prefix}' may be any of these runs:", *lines, *more]),
            code="AMBIGUOUS_RUN",
            suggestion="write more of the id",
        )
    return client.get_run(prefix if len(found) > 1 else found[0].id)
