"""Fills a run's stream as a worker does, with the worker's own script, and ends its steps in Postgres."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flujo_worker.streams
from flujo_client.address import ROOT
from flujo_client.api.handle import RunHandle
from flujo_client.contract.stream import keys_of, place_of
from flujo_client.serial import Packed, encode
from flujo_worker.streams.writers import claim_of
from tests.support.fleet import Site

SCRIPT = (Path(flujo_worker.streams.__file__).parent / "write.lua").read_text()
STREAMED = "UPDATE flujo_runs SET settings = coalesce(settings, '{}') || '{\"stream\": \"all\"}' WHERE id = %(run)s RETURNING id"
MERGE = """
INSERT INTO flujo_attempts (key, run_id, address, step, number, status, queue, output, ended_at)
VALUES (%(key)s, %(run)s, %(address)s, %(step)s, %(number)s, 'succeeded', 'q', %(output)s, now())
ON CONFLICT (key) DO UPDATE SET (status, output, ended_at) = (excluded.status, excluded.output, excluded.ended_at) RETURNING key
"""
END = """
WITH ended AS (UPDATE flujo_runs SET status = %(status)s, output = %(output)s, ended_at = now() WHERE id = %(run)s RETURNING id)
SELECT CASE WHEN %(notify)s THEN pg_notify('flujo_runs', id) END FROM ended
"""


class StreamWriter:
    """Writes the stream of a run that no worker runs.

    Args:
        site: the run's.
        run: it has just been enqueued.
        most: entries that the stream keeps, about.
    """

    def __init__(self, site: Site, run: RunHandle[Any, Any], *, most: int = 10_000) -> None:
        self._site, self.run_id, self._most = site, run.id, most
        self.keys = keys_of(site.settings.broker_key_prefix, run.id)
        self._script = site.redis.register_script(SCRIPT)
        self._epochs: dict[tuple[str, int, int], bytes] = {}
        site.rows(STREAMED, run=run.id)

    def write(
        self, step: str, *entries: tuple[str, dict[str, Any]], address: str = ROOT, number: int = 1, fence: int = 1
    ) -> bool:
        """Append entries of a claim; False if a later claim has the place."""
        claim = (place_of(address, step), number, fence)
        values = claim_of(*claim, self._epochs.get(claim, b""), entries)
        [epoch] = self._script(list(self.keys), [self._most, 60_000, *values])
        self._epochs[claim] = epoch or b""
        return epoch is not None

    def tokens(self, step: str, *texts: str, **claim: Any) -> bool:
        """Append tokens of a claim."""
        return self.write(step, *(("token", token(text)) for text in texts), **claim)

    def merge(self, step: str, output: Any, *, address: str = ROOT, number: int = 1) -> None:
        """Record that a step has succeeded."""
        key = f"{self.run_id}:{address}:{step}:{number}"
        packed = bytes(Packed.of(encode(output)))
        self._site.rows(MERGE, key=key, run=self.run_id, address=address, step=step, number=number, output=packed)

    def end(self, status: str = "succeeded", output: Any = None, *, notify: bool = True) -> None:
        """Record that the run has ended."""
        packed = bytes(Packed.of(encode(output))) if status == "succeeded" else None
        self._site.rows(END, run=self.run_id, status=status, output=packed, notify=notify)


def token(text: str) -> dict[str, Any]:
    """Return the data of a token, as pydantic-ai's event has it."""
    return {"event_kind": "part_delta", "index": 0, "delta": {"part_delta_kind": "text", "content_delta": text}}
