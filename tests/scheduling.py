"""Which test process runs which module, and when.

A module runs in one process: its database, its workers and what its fixtures have worked out serve all its tests. Tests that start workers
mostly wait, all others compute. So most processes take modules from the front of the list, where those are that wait, and one in four from the
end, where those are that compute: the cores are busy from the beginning, and no long module is left for last.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest
    from xdist.workermanage import WorkerController

WAITING = {"acceptance", "integration"}
SHORT = {"aros", "unit"}
"""Folders of modules that wait, and of those that mostly take less than a second. All others compute for seconds."""

LONGEST = {
    "test_quarantine.py",
    "test_rolling_restarts.py",
    "test_other_code.py",
    "test_stuck_code.py",
    "test_celery_app.py",
}
"""Modules that wait for half a minute or more. They come first."""

GROUP = 4
"""Of so many processes the last one begins at the end of the list."""


def in_order(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return modules that wait first, then short ones, and last those that compute for seconds."""
    modules = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    return [test for tests in sorted(modules, key=_rank) for test in tests]


def _rank(tests: list[pytest.Item]) -> int:
    path = tests[0].path
    if path.name in LONGEST:
        return 0
    return 1 if WAITING & set(path.parts) else 2 if SHORT & set(path.parts) else 3


class TwoEnded(LoadFileScheduling):
    """Give each process that has two tests left its next module, from the front of the list or from its end."""

    def schedule(self) -> None:
        """Begin, with modules in the order of the list."""
        self.config.option.loadscopereorder = False
        super().schedule()

    def _assign_work_unit(self, node: WorkerController) -> None:
        if int(node.gateway.id.removeprefix("gw")) % GROUP == min(GROUP, self.numnodes) - 1:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)
