"""What changed first in a request that is not on record while others of the same asker are; and what nothing has asked for any more.

What is recorded of a unit begins with who asks; the parts of a request follow, each as `name: digest`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from flujo_worker.domain.nearest import nearest
from flujo_worker.domain.units import RecordedUnit, Unit
from flujo_worker.observe.log import emit

SHOWN: Final = 8
"""How many lines an event shows of what has changed."""


def emit_change(unit: Unit, unasked: Iterable[RecordedUnit], told: set[str]) -> None:
    """Emit how a request differs from the most similar one of those on record that nothing has asked for: for each asker the first time."""
    asker, *parts = _asked(unit)
    if not parts or asker in told:
        return
    trees = [_asked(each) for each in unasked if each.operation == unit.operation]
    known = [rest for who, *rest in trees if who == asker]
    if known:
        told.add(asker)
        changed = nearest(parts, known).changed
        first = changed[0][1:].rpartition(": ")[0] if changed else "what it is part of"
        emit("unit.changed", "warning", operation=unit.operation, first=first, changed=changed[:SHOWN])


def emit_unasked(unasked: Iterable[RecordedUnit], askers: Collection[str]) -> None:
    """Emit their operations. What is inside a unit that was answered from record has an asker that did not run, and was not needed."""
    operations = Counter(each.operation for each in unasked if _asked(each)[0] in askers)
    if operations:
        emit("unit.unasked", "warning", operations=dict(operations), count=operations.total())


def _asked(unit: Unit | RecordedUnit) -> list[str]:
    tree: list[str] = [""] if unit.asked is None else unit.asked.tree()
    return tree
