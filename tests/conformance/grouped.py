"""A store whose claims and merges are first asked of groups, on an event loop of their own, and alone where a group does not answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import Any, TypeVar, Unpack

import pytest

from flujo_worker.domain.values import Decision
from flujo_worker.ports import Claim, ClaimTerms, Committed
from flujo_worker.store.postgres import loop_connection
from flujo_worker.store.postgres.attempts import AttemptsInPostgres
from flujo_worker.store.postgres.group_bind import is_groupable
from flujo_worker.store.postgres.groups import GroupedLedger
from flujo_worker.store.postgres.pool import RetryingPool
from flujo_worker.store.postgres.scopes import ScopesInPostgres
from flujo_worker.store.postgres.statements import Statement, statement
from flujo_worker.store.postgres.stores import PostgresStores

T = TypeVar("T")


class Grouped:
    """A ledger of groups, for tests that run no loop."""

    def __init__(self, url: str, *, is_alone: Callable[[], bool] = lambda: False, **options: bool) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever)
        self._thread.start()
        self.ledger = GroupedLedger(url, is_alone=is_alone, **options)
        self.run(self._open())
        self.wait_until_ready()

    async def _open(self) -> None:
        await self.ledger.open()
        for connection in self.ledger.connections:
            connection.open()

    def run(self, asked: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result(60)

    def together(self, *asked: Coroutine[Any, Any, T]) -> list[T]:
        """Ask at one moment, so that all of it is one group; give the answers in order."""

        async def gathered() -> list[T]:
            return list(await asyncio.gather(*asked))

        return self.run(gathered())

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + 30
        while not all(each.is_ready for each in self.ledger.connections):
            assert time.monotonic() < deadline, "no groups"
            time.sleep(0.005)

    def close(self) -> None:
        self.run(self.ledger.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


@contextmanager
def grouped(url: str, **options: bool) -> Iterator[Grouped]:
    """Open groups on a database, with these options of the ledger."""
    groups = Grouped(url, **options)
    try:
        yield groups
    finally:
        groups.close()


class GroupedAttempts(AttemptsInPostgres):
    """Send each claim and merge first through a group, between neighbours that no longer exist."""

    def __init__(self, pool: RetryingPool, scopes: ScopesInPostgres, groups: Grouped) -> None:
        super().__init__(pool, scopes)
        self.groups = groups

    def claim(self, key: str, worker: str, **terms: Unpack[ClaimTerms]) -> Claim:
        ask, answer = partial(self.groups.ledger.claim, to_reserve=terms.get("to_reserve", ())), None
        if terms.get("room", "shared") == "shared":
            own = ask(key, worker, fan_outs=terms.get("fan_outs", ()), plan=terms.get("plan"))
            _, answer, _ = self.groups.together(ask("run_gone::a:1", worker), own, ask("run_none::a:1", "w0"))
        return answer or super().claim(key, worker, **terms)

    def commit(self, decision: Decision) -> Committed:
        commit = self.groups.ledger.commit
        if not is_groupable(decision):
            return self.groups.run(commit(decision)) or super().commit(decision)
        before, after = (_of_no_run(decision, f"run_{name}") for name in ("gone", "none"))
        _, answer, _ = self.groups.together(commit(before), commit(decision), commit(after))
        return answer or super().commit(decision)


class GroupedStores(PostgresStores):
    """Stores whose every claim and merge goes first through a group."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.groups = Grouped(url, is_alone=lambda: True)
        self.attempts = GroupedAttempts(self.pool, ScopesInPostgres(self.pool), self.groups)

    def close(self) -> None:
        self.groups.close()
        super().close()


def _of_no_run(decision: Decision, run: str) -> Decision:
    """The same decision for a run that there is not."""
    envelope = decision.notice.envelope
    elsewhere = replace(envelope, ticket=replace(envelope.ticket, run=run))
    return replace(decision, notice=replace(decision.notice, envelope=elsewhere))


def break_statement(monkeypatch: pytest.MonkeyPatch, name: str, said: str, instead: str) -> None:
    """Have groups execute a statement in which one thing is replaced by another."""
    text, names = statement(name)
    assert said.encode() in text
    broken = Statement(text.replace(said.encode(), instead.encode()), names)
    monkeypatch.setattr(loop_connection, "statement", lambda asked: broken if asked == name else statement(asked))
