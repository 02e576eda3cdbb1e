"""When a group of claims or merges goes: at once where no one else could ask, else with whoever asks at the same moment."""

import asyncio

import pytest

from flujo_worker.store.postgres.groups import Groups


class Connection:
    """Answers each group with its requests, once it is told to."""

    is_ready = True

    def __init__(self):
        self.groups, self._answered = [], []

    def open(self):
        """It is."""

    def execute(self, calls, answered, after):
        self.groups.append(calls)
        self._answered.append(answered)

    def answer(self):
        self._answered.pop(0)([], [])


@pytest.mark.parametrize(("is_alone", "expected"), [(True, [[1], [2, 3]]), (False, [[1, 2, 3]])])
def test_who_is_alone_waits_for_no_one(is_alone, expected):
    async def ask():
        connection = Connection()
        groups = Groups(connection, list, lambda requests, _: list(requests), lambda: is_alone)
        asked = [asyncio.ensure_future(groups.ask(str(each), None, each)) for each in (1, 2, 3)]
        while not all(each.done() for each in asked):
            await asyncio.sleep(0)
            if connection.groups and connection._answered:
                connection.answer()
        assert [each.result() for each in asked] == [1, 2, 3]
        return connection.groups

    assert asyncio.run(ask()) == expected
