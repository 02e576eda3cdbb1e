"""Read times that Postgres has and Python does not, such as `infinity` or one in the year 10000.

psycopg raises for such a time, and with that for all rows of an answer.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, cast

import psycopg
from psycopg.adapt import AdaptersMap, Loader
from psycopg.pq import Format

from flujo_client.contract.rows import EARLIEST, LATEST

if TYPE_CHECKING:
    from psycopg.abc import AdaptContext, Buffer


class TimeLoader(Loader):
    """Read a timestamptz; one outside of the years 2 to 9998 becomes `EARLIEST` or `LATEST`."""

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        kind = psycopg.adapters.get_loader(oid, Format.TEXT)
        assert kind is not None
        self._strict = kind(oid, context)

    def load(self, data: Buffer) -> datetime:
        """Return the time."""
        try:
            at = cast("datetime", self._strict.load(data))
        except psycopg.DataError:
            text = bytes(data)
            return EARLIEST if text.startswith(b"-") or text.endswith(b"BC") else LATEST
        return at if EARLIEST.year < at.year < LATEST.year else EARLIEST if at.year == EARLIEST.year else LATEST


LENIENT_TIMES: Final = AdaptersMap(psycopg.adapters)
LENIENT_TIMES.register_loader("timestamptz", TimeLoader)
