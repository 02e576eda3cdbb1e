"""A separate clock for a test database, so that tests on real services need not wait for days (ADR 46).

Must not be used in production: it refuses such settings, and a database that already has runs.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row

from flujo_client.config.manager import ConfigManager, Settings
from flujo_client.embedded.local import join_services
from flujo_client.errors import ConfigurationError
from flujo_client.transport.postgres import options
from flujo_worker.store.postgres.statements import Connection, execute

if TYPE_CHECKING:
    from collections.abc import Iterator


_LOOK_EVERY_S = 0.05
_BEYOND_S = 0.001
_SHOWN = 5


class DatabaseClock:
    """Advances the time for everything that Postgres decides: waits, expiries, deadlines, debounce and throttle.

    It is installed in the database of the settings, which must be migrated and must not have had runs; connections of running workers are
    replaced. It stays in the database. Only one process uses it at a time.

    Args:
        settings: those of the workers; None reads `flujo.toml` and the environment, or joins `flujo up`.
        patience_s: real seconds that workers may take for what is due.

    Raises:
        ConfigurationError: no services are set or running, the settings are those of production, the database has runs but
            not this clock, or its URL sets a search path.
    """

    def __init__(self, settings: Settings | None = None, *, patience_s: float = 60.0) -> None:
        settings = join_services(settings or ConfigManager().settings())
        if settings.mode == "production":
            raise _refusal("a clock that tests move must not run in production", 'use mode = "development"')
        self._url, self._patience_s = settings.database(), patience_s
        self._install()

    def now(self) -> float:
        """Return the clock's time, in unix seconds."""
        with self._connected() as connection:
            return float(_row(connection, "next", fires=False)["now"])

    def pass_time(self, seconds: float | None = None) -> None:
        """Let time pass: workers do what becomes due in the order of its time, each with the clock at that time.

        Args:
            seconds: how long. None: until nothing waits for a time any more, not even a question that expires; schedules do not count.

        Raises:
            TimeoutError: workers did not finish what was due within `patience_s`; it is named.
        """
        with self._connected() as connection:
            state = self._settled(connection, fires=seconds is not None)
            until = inf if seconds is None else state["now"] + seconds
            while state["due"] is not None and state["due"] <= until:
                _advance(connection, state["due"] - state["now"] + _BEYOND_S)
                state = self._settled(connection, fires=seconds is not None)
            if until > state["now"] and seconds is not None:
                _advance(connection, until - state["now"])

    def _settled(self, connection: Connection, *, fires: bool) -> dict[str, Any]:
        """Wait until nothing is due or running, not even a schedule if it `fires`."""
        deadline = time.monotonic() + self._patience_s
        while busy := (state := _row(connection, "next", fires=fires))["busy"]:
            if time.monotonic() > deadline:
                what = f"{', '.join(busy[:_SHOWN])}{f' and {len(busy) - _SHOWN} more' if len(busy) > _SHOWN else ''}"
                raise TimeoutError(f"not done within {self._patience_s:g} s of real time: {what}; does a worker run?")
            time.sleep(_LOOK_EVERY_S)
        return state

    def _install(self) -> None:
        with self._connected() as connection, connection.transaction():
            state = _row(connection, "state")
            if not state["is_installed"] and state["has_runs"]:
                raise _refusal("the database has runs", "use a new database for tests that let time pass")
            if not state["is_installed"]:
                execute(connection, "clock/install", {})
        with self._connected() as connection:
            if not _row(connection, "state")["is_used"]:
                raise _refusal("the database's URL or role sets a search path", "leave the search path out")

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with psycopg.connect(
            self._url, **options(self._url), autocommit=True, row_factory=dict_row, cursor_factory=psycopg.RawCursor
        ) as connection:
            yield connection


def _row(connection: Connection, name: str, **parameters: Any) -> dict[str, Any]:
    [row] = execute(connection, f"clock/{name}", parameters).fetchall()
    return row


def _advance(connection: Connection, seconds: float) -> None:
    with connection.transaction():
        execute(connection, "clock/hold", {})
        execute(connection, "clock/advance", {"seconds": seconds})


def _refusal(what: str, suggestion: str) -> ConfigurationError:
    return ConfigurationError(what, suggestion=suggestion, code="DATABASE_CLOCK")
