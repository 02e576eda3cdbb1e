"""A message's part in a Celery chord, derived from the lanes its work is in. Nothing about it is stored (ADR 9).

Each fan-out is a chord whose body is its join signal. Whatever runs in a lane of it is published as that lane's part, by the one who
publishes it; the join of an inner fan-out is in turn a part of the outer one's. In go a run and its lanes, out come options that
Celery understands. It publishes nothing and uses no broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flujo_client.contract.envelope import TASK_JOIN, JoinSignal
from flujo_client.transport.wire import SERIALIZER

NO_LANE = -1
"""The lane of a branch that paused and whose lane a sibling has got."""
MOST_NESTED = 100
"""The maximum number of nested fan-outs in a message: they are walked by recursion."""


def group_of(run: str, fan_out: str) -> str:
    """Return the id of a fan-out's chord."""
    return f"chord:{run}:{fan_out}"


def is_membership(run: str, group: Any, index: Any, chord: Any) -> bool:
    """Return whether a message's part in chords is one that `membership` returns for some lanes of the run; being part of none counts too.

    Raises SerializationError, KeyError, TypeError, IndexError or AttributeError for a chord that sends no join signal.
    """
    if chord is None:
        return group is None and index is None
    lanes: dict[str, int] = {}
    around, lane = chord, index
    while around is not None:
        if type(lane) is not int or len(lanes) >= MOST_NESTED:
            return False
        lanes[JoinSignal.from_wire(around["args"][0]).address] = lane
        around, lane = around["options"].get("chord"), around["options"].get("group_index")
    options = chord["options"]
    expected = membership(run, lanes, queue=options["queue"], priority=options.get("priority"))
    return isinstance(options["queue"], str) and expected == {"group_id": group, "group_index": index, "chord": chord}


def membership(run: str, lanes: Mapping[str, int], *, queue: str, priority: int | None = None) -> dict[str, Any]:
    """Return the options `group_id`, `group_index` and `chord` of work in these lanes; none outside fan-outs, nor without a lane.

    `lanes` are by the addresses of fan-outs; joins are sent to `queue`.
    """
    if not lanes:
        return {}
    fan_out = max(lanes, key=len)  # addresses of fan-outs one inside the other grow, so the longest is the innermost
    if lanes[fan_out] == NO_LANE:
        return {}
    around = {address: lane for address, lane in lanes.items() if address != fan_out}
    join_signal = JoinSignal(run, fan_out)
    options = {"task_id": join_signal.key, "queue": queue, "serializer": SERIALIZER, "ignore_result": True}
    if priority is not None:
        options["priority"] = priority
    join = {
        "task": TASK_JOIN,
        "args": [join_signal.to_wire()],
        "kwargs": {},
        "options": options | membership(run, around, queue=queue, priority=priority),
        "subtask_type": None,
        "immutable": False,
    }
    return {"group_id": group_of(run, fan_out), "group_index": lanes[fan_out], "chord": join}
