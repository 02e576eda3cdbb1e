"""Find the run that an argument means: by its id, a unique beginning or end of it, or as the newest, or the one before it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from flujo_client.api.client import FlujoClient
from flujo_client.api.handle import RunHandle
from flujo_client.cli.options import option
from flujo_client.contract.records import RunRecord
from flujo_client.errors import ClientError, RunNotFound

CANDIDATES = 10
RUN_OF_RUN = "."
"""A mark that the ids of child runs have, and few others, such as those of schedules."""
LAST = "last"
_BACK = re.compile(r"-([1-9]\d{0,3})")


def run_argument(act: Callable[..., None]) -> Callable[..., None]:
    """Add the argument RUN, which may be left out: the newest run then, as `last` and `-1` say; `-2` is the one before it."""
    for back in (f"-{number}" for number in range(1, 10)):  # click takes `-1` for an option
        act = option(back, "back", flag_value=back, hidden=True, expose_value=False, callback=_put)(act)
    return click.argument("run", default=LAST, callback=_taken, metavar="[RUN]")(act)


def _put(ctx: click.Context, _: click.Parameter, given: str | None) -> None:
    if given is not None:
        ctx.meta[LAST] = given


def _taken(ctx: click.Context, _: click.Parameter, given: str) -> Any:
    return ctx.meta.get(LAST, given) if given == LAST else given


def find_run(client: FlujoClient, named: str) -> RunHandle:
    """Find the run whose id begins or ends so, or that `last` or `-2` names among those that are not child runs.

    Raises:
        RunNotFound: there is none.
        ClientError: several ids begin, or end, so; they are listed.
    """
    back = _BACK.fullmatch("-1" if named == LAST else named)
    if back is not None:
        found = client.list_runs(parent="", limit=1, offset=int(back[1]) - 1)
        return _only(client, found, named, "there are no runs yet")
    found = client.list_runs(prefix=named, parent=_parent(named), limit=CANDIDATES + 1)
    found = found or client.list_runs(end=named, limit=CANDIDATES + 1)
    return _only(client, found, named, f"no run id begins or ends with '{named}'")


def find_part(client: FlujoClient, part: str) -> RunHandle:
    """Find the run that has this anywhere in its id; raises as `find_run` does."""
    found = client.list_runs(part=part, parent=_parent(part), limit=CANDIDATES + 1)
    found = found or client.list_runs(part=part, limit=CANDIDATES + 1)  # it may be in what only a child run's id has
    return _only(client, found, part, f"no run id contains '{part}'")


def _parent(part: str) -> str | None:
    """Return the parent to filter by: none, or any for a child run's id, which begins with its parent's."""
    return None if RUN_OF_RUN in part else ""


def _only(client: FlujoClient, found: Sequence[RunRecord], named: str, none: str) -> RunHandle:
    if not found:
        raise RunNotFound(none, suggestion="`flujo lens list` lists the runs")
    if len(found) > 1 and all(run.id != named for run in found):
        lines = [f"{run.id}  {run.name}  {run.status}" for run in found[:CANDIDATES]]
        lines += ["…"] if len(found) > CANDIDATES else []
        what, way_out = f"'{named}' matches several runs:", "give more of the id, or its last characters"
        raise ClientError("\n  ".join([what, *lines]), code="AMBIGUOUS_RUN", suggestion=way_out)
    return client.get_run(named if len(found) > 1 else found[0].id)
