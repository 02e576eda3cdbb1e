"""A step that reads a database which its attempt holds open, is judged, and asks somebody else where it knows nothing."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from flujo_client import Pipeline, PluginOutcome, Step, validator

LIMIT = 50.0


@contextmanager
def tariffs() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", check_same_thread=False)  # threads may differ between enter, use and leave
    try:
        with connection:  # commits after a success, rolls back after a failure
            connection.execute("CREATE TABLE tariffs (country TEXT, per_kilo REAL)")
            connection.executemany("INSERT INTO tariffs VALUES (?, ?)", [("AT", 4.5), ("AQ", 80.0)])
            yield connection
    finally:
        connection.close()


def look_up(country: str, *, resources: sqlite3.Connection) -> float:
    row = resources.execute("SELECT per_kilo FROM tariffs WHERE country = ?", [country]).fetchone()
    return row[0] if row else 0.0


def ask_the_desk(country: str) -> float:
    return {"FR": 9.5}.get(country, 0.0)


class Priced:
    def validate(self, price: float) -> PluginOutcome:
        if price:
            return PluginOutcome(success=True)
        return PluginOutcome(success=False, feedback="no tariff", redirect_to=ask_the_desk)


@validator
def affordable(price: float) -> tuple[bool, str]:
    return price < LIMIT, f"{price} a kilo is too dear"


pipeline = Pipeline([Step("price", look_up, plugins=[Priced()], validators=[affordable])], resources=tariffs)
