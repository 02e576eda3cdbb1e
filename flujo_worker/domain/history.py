"""What attempts at a step have cost before, as what the next one is expected to. Pure.

In: keys of attempts with what each spent. Out: an estimate for each place in a pipeline that was tried often enough. Iterations and items
of one container are one place.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from flujo_client.address import AttemptKey
from flujo_client.contract.limits import UsageEstimate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from flujo_client.contract.outcome import Usage

Place = tuple[str, str]
_NUMBER = re.compile(r"#\d+")


def place_of(address: str, step: str) -> Place:
    """Name a place in the pipeline, whichever iteration it is tried in."""
    return _NUMBER.sub("", address), step


def learned(spent: Iterable[tuple[str, Usage]], *, least: int, quantile: float) -> dict[Place, UsageEstimate]:
    """Expect what all but the dearest attempts have cost.

    Args:
        spent: attempts' keys, with what each spent in all.
        least: attempts that a place needs to be told of.
        quantile: the share of attempts that cost no more than is expected, above 0 and up to 1.
    """
    found: defaultdict[Place, list[Usage]] = defaultdict(list)
    for key, usage in spent:
        tried = AttemptKey.parse(key)
        found[place_of(tried.address, tried.step)].append(usage)
    return {place: _expected(usages, quantile) for place, usages in found.items() if len(usages) >= least}


def _expected(usages: Sequence[Usage], quantile: float) -> UsageEstimate:
    rank = math.ceil(quantile * len(usages)) - 1
    cost = sorted(each.cost_usd for each in usages)[rank]
    return UsageEstimate(cost_usd=cost, tokens=sorted(each.input_tokens + each.output_tokens for each in usages)[rank])
