"""The queries for the facts of sentences about runs: the same few for one run and for many. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

from flujo_client.contract.rows import fault_of, mapping_or_none, read_columns, unreadable
from flujo_client.explain import facts
from flujo_client.gateway.requests import Request, Row
from flujo_client.plan.plan import Plan

T = TypeVar("T")
FEW: Final = 6
"""The live attempts of a run that are read: those that hold it most."""
EXTRAS: Final = 100
"""The attempts of a successful run among which a repaired answer is looked for."""
MOST_LIVE: Final = 10_000
"""The maximum number of queued and running attempts that are counted for the lengths of queues."""
MOST_PERMITS: Final = 2_000


def _parked(tree: Any) -> Mapping[str, Any] | None:
    seen = mapping_or_none(tree)
    return seen and {**seen, "at": datetime.fromisoformat(seen["at"])}


_READERS: Final = {
    **dict.fromkeys(("fault", "fault_before"), fault_of),
    **dict.fromkeys(("question", "loss"), mapping_or_none),
    "parked": _parked,
}
_BOUNDS: Final[Request[None]] = Request("explain_bounds", {}, lambda _: None)


class RunScope(NamedTuple):
    """A scope of a run."""

    run: str
    address: str


def explained_runs(run_ids: Collection[str]) -> Request[list[facts.RunRowFacts]]:
    """Read runs, and the child runs that their sentences are about."""
    return _bounded("runs", lambda rows: [_run(row) for row in rows], runs=list(run_ids), extras=EXTRAS)


def plans(fingerprints: Collection[str]) -> Request[dict[str, Plan]]:
    """Read plans by their fingerprints, but those that are damaged."""
    return _bounded("plans", _plans, fingerprints=list(fingerprints))


def live_attempts(run_ids: Collection[str]) -> Request[list[facts.AttemptFacts]]:
    """Read some of the attempts of each run that have not ended."""
    return _bounded("live", _attempts, runs=list(run_ids), few=FEW)


def stopped_attempts(run_ids: Collection[str]) -> Request[list[facts.AttemptFacts]]:
    """Read the attempt at which each run ended without success."""
    return _bounded("stopped", _attempts, runs=list(run_ids))


def gates(run_ids: Collection[str]) -> Request[dict[str, facts.GateFacts]]:
    """Read where runs wait for their admission."""
    return _bounded("gates", lambda rows: _by_run(rows, facts.GateFacts), runs=list(run_ids))


def fleet(keys: Collection[str], control_queue: str) -> Request[facts.FleetFacts]:
    """Read the state of the workers, and how many attempts are before the attempts with these keys."""
    return _bounded("fleet", lambda rows: _fleet(rows[0], control_queue), keys=list(keys), most=MOST_LIVE)


def limits(names: Collection[str]) -> Request[dict[str, facts.LimitFacts]]:
    """Read who holds the places of concurrency limits, and who is in line."""
    return _bounded("limits", _limits, names=list(names), most=MOST_PERMITS)


def fan_outs(run_ids: Collection[str]) -> Request[dict[str, facts.FanOutFacts]]:
    """Read how far the outermost open container with branches of each run has come."""
    return _bounded("fan_outs", lambda rows: _by_run(rows, facts.FanOutFacts), runs=list(run_ids))


def containers(scopes: Sequence[RunScope]) -> Request[dict[RunScope, Mapping[str, Any]]]:
    """Read the kind of containers, as `around`, and how many children maps have, as `siblings`."""
    runs, addresses = [each.run for each in scopes], [each.address for each in scopes]
    return _bounded("containers", _containers, runs=runs, addresses=addresses)


def _bounded(name: str, read: Callable[[list[Row]], T], **parameters: Any) -> Request[T]:
    return Request(f"explain_{name}", parameters, read, bounds=_BOUNDS)


def _containers(rows: list[Row]) -> dict[RunScope, Mapping[str, Any]]:
    return {RunScope(row.pop("run_id"), row.pop("address")): row for row in rows}


def _run(row: Row) -> facts.RunRowFacts:
    values, wrong = read_columns(row, _READERS)
    if values["fault"] is None and row["fault"] is not None:
        values["fault"] = unreadable(wrong)
    return facts.RunRowFacts(**values)


def _attempts(rows: list[Row]) -> list[facts.AttemptFacts]:
    return [facts.AttemptFacts(**read_columns(row, _READERS)[0]) for row in rows]


def _plans(rows: list[Row]) -> dict[str, Plan]:
    found = {}
    for row in rows:
        try:
            found[row["fingerprint"]] = Plan.from_tree(row["plan"])
        except (LookupError, TypeError, ValueError, AttributeError):
            continue
    return found


def _by_run(rows: list[Row], kind: Any) -> dict[str, Any]:
    return {row.pop("run_id"): kind(**{name: row[name] for name in row if name in kind.__slots__}) for row in rows}


def _fleet(row: Row, control_queue: str) -> facts.FleetFacts:
    queues = {name: facts.QueueFacts(*numbers) for name, numbers in row["queues"].items()}
    lacking = {name: _keys(reports) for name, reports in row["lacking"].items()}
    return facts.FleetFacts(**{**row, "queues": queues, "lacking": lacking}, control_queue=control_queue)


def _keys(reports: list[Any]) -> tuple[str, ...]:
    """Return the keys that workers reported as missing, without reports that cannot be read."""
    return tuple(sorted({str(key) for report in reports if isinstance(report, list) for key in report}))


def _limits(rows: list[Row]) -> dict[str, facts.LimitFacts]:
    found = {}
    for name in dict.fromkeys(row["name"] for row in rows):
        own = [row for row in rows if row["name"] == name]
        line = [row["key"] for row in own if not row["holds"]]
        holders = tuple(row["run_id"] for row in own if row["holds"])
        found[name] = facts.LimitFacts(
            at_once=own[0]["at_once"], holders=holders, in_line={key: turn for turn, key in enumerate(line)}
        )
    return found
