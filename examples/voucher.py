"""How to spend a voucher: a tree search. A proposer lists what can be bought next, an evaluator says how much of it is used up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flujo_client import Pipeline, Step

if TYPE_CHECKING:
    from flujo_client import EvaluatorInput, ProposerInput

PRICES = {"mead": 12, "honey": 7, "candle": 4, "soap": 3}


def spent(basket: list[str]) -> int:
    return sum(PRICES[each] for each in basket)


def list_more(node: ProposerInput) -> list[str]:
    left = node.goal - spent(node.path)
    return [name for name, price in PRICES.items() if price <= left]


async def rate(node: EvaluatorInput) -> dict[str, Any]:
    used = spent([*node.path, node.candidate])
    return {"score": used / node.goal, "reason": f"{used} of {node.goal}"}


pipeline = Pipeline([Step.tree_search("fill", list_more, rate, beam_width=2, max_depth=4, require_goal=True)])
