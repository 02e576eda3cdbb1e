"""The effects of the monkey's steps, in the same Postgres, in place of a user's mails and payments.

Each time that a step acts it writes a row with its claim, in a separate commit from the merge.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from functools import cache
from typing import Final, TypeVar

import psycopg

from flujo_client.attempt_info import AttemptInfo
from flujo_client.config.manager import ConfigManager
from flujo_client.errors import ClientError, ServiceUnreachable
from flujo_client.sql_files import written
from flujo_client.transport.postgres import BoundedConnection, fate, options

T = TypeVar("T")

HOME: Final = "flujo_worker.chaos"
PATIENCE_S: Final = 25.0
"""Seconds; shorter than a step's timeout."""
_PAUSE_S: Final = 0.1


def sql(name: str) -> str:
    return written(name, HOME)


def record(info: AttemptInfo) -> None:
    """Write the effect of a step. A repeated call after a lost answer writes no second effect."""
    effect = {"id": uuid.uuid4(), "run": info.run_id, "key": info.key, "claim_id": info.claim_id}

    def write() -> None:
        with BoundedConnection.connect(_url(), autocommit=True, **options(_url())) as connection:
            connection.execute(sql("record_effect").encode(), effect)

    patiently(write, PATIENCE_S)


def patiently(ask: Callable[[], T], seconds: float = 60.0) -> T:
    """Retry for so many seconds while Postgres or Redis does not answer, or a row is locked."""
    until = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except (psycopg.Error, ServiceUnreachable, ClientError) as error:
            is_ours = isinstance(error, psycopg.Error) and fate(error) == "ours"
            is_hopeless = is_ours or (isinstance(error, ClientError) and error.error_code != "LOCKED")
            if is_hopeless or time.monotonic() > until:
                raise
            time.sleep(_PAUSE_S)


@cache
def _url() -> str:
    return ConfigManager().settings().database()
