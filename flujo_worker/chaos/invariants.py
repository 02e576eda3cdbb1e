"""The invariants that must hold when all runs have ended: each is a statement that returns its violations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final

from flujo_worker.chaos.pipelines import COST_USD, TOKENS, Trail
from flujo_worker.chaos.report import InvariantResult
from flujo_worker.chaos.site import Site

PROMISES: Final = {
    "runs_ended": "Every run that was acknowledged is recorded, and has ended.",
    "ends_expected": "Each run ended as it does without faults, unless it was cancelled. Runs next to killers succeed.",
    "merged_once": "No result is merged twice: each merge has one event, and a run merges as often as it does without faults.",
    "merges_have_effects": "Every merged attempt has the effect of the claim under which it was merged.",
    "effects_explained": "A claim acts at most once. An effect without a merge belongs to a claim that was lost, failed or cancelled.",
    "spends_once": "Every merge has one spend, with its cost. No claim that did nothing has one.",
    "budgets_settled": "A run's budget has booked what its attempts spent.",
    "nothing_reserved": "No reservation is held, and no run waits for or holds a place.",
    "scopes_closed": "No scope is open.",
    "attempts_ended": "No attempt is without an end.",
    "cancels_hold": "Nothing was merged after a cancel was acknowledged.",
}
"""Each is `sql/<name>.sql`; the column `what` of its rows describes a violation."""
CONTEXTS: Final = "The context of each run that succeeded is the fold of its merges."
DEAD_LETTERS: Final = "Workers refused no message, except items that are not messages."
DEADLOCKS: Final = "Postgres has detected no deadlock."
EXPLAINED: Final = frozenset({"malformed", "foreign"})
"""The reasons for which items that are not messages are refused."""


@dataclass
class Observed:
    """Facts that servers observed during the storm, and that are in no row."""

    refused: Counter[str] = field(default_factory=Counter)
    """How many messages workers refused, by reason; Redis was asked before each loss of its data."""
    junk: int = 0
    """How many items were pushed that are not messages."""
    deadlocks: int = 0
    """How many deadlocks Postgres has reported; its log was read before each end of the server."""


def judge(site: Site, acknowledged: Collection[str], observed: Observed) -> list[InvariantResult]:
    """Return all invariants with their violations; `acknowledged` are the runs whose ids a client was given."""
    return [
        *(InvariantResult(name, promise, violations(site, name, acknowledged)) for name, promise in PROMISES.items()),
        InvariantResult("contexts_folded", CONTEXTS, wrong_contexts(site)),
        InvariantResult("no_dead_letters", DEAD_LETTERS, unexplained(observed)),
        InvariantResult("no_deadlocks", DEADLOCKS, ["Postgres has reported one"] * observed.deadlocks),
    ]


def violations(site: Site, name: str, acknowledged: Collection[str] = ()) -> list[str]:
    amounts: dict[str, Any] = {"cost_usd": COST_USD, "tokens": TOKENS}
    return [row["what"] for row in site.rows(name, acknowledged=list(acknowledged), **amounts)]


def wrong_contexts(site: Site) -> list[str]:
    """Return the runs whose context does not consist of their merges, each once."""
    found = []
    for row in site.rows("merges_of_runs"):
        context = site.client.get_run(row["id"]).result().final_pipeline_context
        have = sorted(context.merged) if isinstance(context, Trail) else None
        if have != sorted(row["merged"]):
            found.append(f"run {row['id']} ({row['shape']}): its context has {have}, merged were {row['merged']}")
    return found


def unexplained(observed: Observed) -> list[str]:
    """Return the refused messages that were not pushed as junk. A junk item may be delivered again, and refused again."""
    return [
        f"{count} messages were refused as {reason}, and {observed.junk} items were pushed that are not messages"
        for reason, count in observed.refused.items()
        if not (observed.junk and reason in EXPLAINED)
    ]
