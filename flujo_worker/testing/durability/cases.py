"""What is done to the agents: which call is killed where, and what must become of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Literal

from flujo_worker.testing.durability.job import Place

_PLACES: Final[dict[Place, str]] = {
    "asked": "before it is asked",
    "begun": "as it begins",
    "during": "in it",
    "answered": "after its answer",
    "had": "once the agent has the answer",
}


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        name: for people.
        workload: which agent.
        kill: the call and the place at which the first process is killed; None: it is not.
        expected: what must become of it, which is what becomes of an undisturbed agent.
        of: whether that is the `output`, the `notes` that tools wrote, or the `usage`.
        counts: whether calls that are repeated count.
        needs: the module without which it is skipped.
    """

    name: str
    workload: str
    kill: tuple[str, Place] | None
    expected: Any
    of: Literal["output", "notes", "usage"] = "output"
    counts: bool = True
    needs: str = ""


_LOOKED: Final = '["3", "4", "5", "6"]'
CASES: Final = (
    *(Case(f"a request, killed {where}", "looks", ("looker 2", place), _LOOKED) for place, where in _PLACES.items()),
    *(Case(f"a tool, killed {where}", "looks", ("look 4", place), _LOOKED) for place, where in _PLACES.items()),
    Case("tools at once keep their answers", "looks", ("looker 3", "during"), _LOOKED),
    Case("an approval after a restart", "buys", None, '["1", "500"]'),
    Case("a tool's refusal is an answer", "refuses", ("refused 3", "during"), '["not 1", "no 2"]'),
    Case("an agent in a tool", "hires", ("inner 2", "during"), json.dumps([_LOOKED])),
    Case("tools of an MCP server", "serves", ("doubler 3", "during"), '["2", "4"]', needs="mcp.server.mcpserver"),
    Case("what tools write into dependencies", "marks", ("marker 3", "during"), [3, 4, 5, 6], of="notes"),
    Case("equal agents at once", "twins", ("twin 2 1", "during"), [True, True]),
    Case("instructions that change", "instructed", ("looker 3", "during"), _LOOKED),
    Case("a question that a deploy changes", "reworded", ("reader 2", "during"), expected=True, counts=False),
    Case("usage", "looks", ("looker 3", "during"), [3, 306], of="usage", counts=False),
)
