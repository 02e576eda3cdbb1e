"""Every statement that is asked all the time: median milliseconds and pages read, among few ended runs and among many."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from statistics import median
from typing import Any

import psycopg
import pytest
from grouped import grouped
from hot_statements import Asking, Explained, Explainer, act_out, ended_run
from worlds import World

from flujo_worker.store.postgres.stores import PostgresStores
from tests.support.ended_runs import copy, multiply

PRUNED_A_ROUND, HOUR_MS = 5, 3_600_000
Figures = dict[str, tuple[float, float]]
"""Milliseconds and pages by statement."""


def before_and_after(
    url: str,
    ended: int,
    rounds: int,
    work: Callable[[], None],
    without_workers: Callable[[], AbstractContextManager[None]],
) -> None:
    """Work, and print both figures of each statement, before and after so many ended runs were added.

    Workers are stopped while statements are measured, because they would take the attempts.
    """
    stores = PostgresStores(url).open()
    setting = Asking(stores, url)
    run = ended_run(World(setting))
    work()
    with psycopg.connect(url, autocommit=True) as connection:  # old enough to be deleted
        copy(connection, run, range(2, 2 + PRUNED_A_ROUND * rounds), apart_ms=HOUR_MS)
    with without_workers():
        few = measured(setting, url, rounds)
    with psycopg.connect(url, autocommit=True) as connection:
        multiply(connection, run, ended)
        [size] = connection.execute("SELECT pg_size_pretty(pg_database_size(current_database()))").fetchone()
    print(f"{ended} ended runs, {size}", flush=True)
    end_all(setting)
    work()
    with without_workers():
        many = measured(setting, url, rounds)
    stores.close()
    for name in sorted(few):
        (ms, pages), (later_ms, later_pages) = few[name], many[name]
        print(
            f"{name:20} {ms:8.3f} ms {later_ms:8.3f} ms {later_ms / ms:6.2f}   {pages:6.0f} {later_pages:6.0f} pages",
            flush=True,
        )
    total, later = (sum(ms for ms, _ in figures.values()) for figures in (few, many))
    print(f"{'all':20} {total:8.3f} ms {later:8.3f} ms {later / total:6.2f}")


def measured(setting: Asking, url: str, rounds: int) -> Figures:
    """Do everything that often, each statement once to measure it and once to keep it."""
    end_all(setting)
    explainer, patch = Explainer(url, settings="connection_settings", analyze=True), pytest.MonkeyPatch()
    clients = Explainer(url, analyze=True)
    patch.setattr(setting, "explain", clients.ask)
    with grouped(url) as groups:
        for _ in range(rounds):
            with explainer.watching(patch):
                act_out(World(setting), groups)
    patch.undo()
    explainer.close()
    clients.close()
    found = explainer.found + clients.found
    return {name: figures(each for each in found if each.name == name) for name in {each.name for each in found}}


def end_all(setting: Asking) -> None:
    """Leave nothing under way, so that both measurements begin alike."""
    for row in setting.rows("SELECT id FROM flujo_runs WHERE ended_at IS NULL"):
        setting.stores.backlog.stop(row["id"], "cancelled", "measured")


def figures(found: Iterable[Explained]) -> tuple[float, float]:
    plans: list[dict[str, Any]] = [each.plan for each in found]
    pages = [each["Plan"]["Shared Hit Blocks"] + each["Plan"]["Shared Read Blocks"] for each in plans]
    return median(each["Execution Time"] for each in plans), median(pages)
