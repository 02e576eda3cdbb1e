"""Traces while everything fails: each row that has ended has one span, with the parent that the view gives it, and none has two."""

import time

import psycopg
import pytest
from psycopg.rows import dict_row

from flujo_client import Settings
from flujo_worker.chaos.monkey import run_chaos
from flujo_worker.chaos.site import SiteOptions, embedded_site, own_folder
from tests.support.fleet import BRISK
from tests.support.trace_collector import TraceCollector, assert_exported

pytestmark = [pytest.mark.services, pytest.mark.acceptance, pytest.mark.timeout(900)]


class Judged:
    """A monkey's site, as the judge of traces asks it."""

    def __init__(self, site, connection):
        self._site, self._connection = site, connection

    def rows(self, sql, **parameters):
        return self._connection.execute(sql, parameters).fetchall()

    def log(self):
        return self._site.log.read_text(errors="replace")[-4000:]


@pytest.mark.parametrize(
    ("seconds", "away_s"),
    [pytest.param(20, 5, marks=pytest.mark.large), pytest.param(180, 60, marks=pytest.mark.chaos)],
)
def test_each_row_has_one_span_whatever_breaks(seconds, away_s, monkeypatch):
    """Kills, restarts of Postgres and Redis, locks, cut connections, and a collector that is away for a while."""
    with TraceCollector() as collector, own_folder(is_kept=[]) as folder:
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        settings = Settings.model_validate({"worker": BRISK})
        with embedded_site(settings, SiteOptions("traces", 3, folder)) as site:
            began = time.monotonic()
            collector.refuses = lambda _: 503 if away_s < time.monotonic() - began < 2 * away_s else None
            report = run_chaos(site, seed=42, seconds=seconds)
            assert report.violations == 0, report.tree()
            with psycopg.connect(site.settings.database(), row_factory=dict_row, autocommit=True) as connection:
                judged = Judged(site, connection)
                runs = [row["id"] for row in judged.rows("SELECT id FROM flujo_runs")]
                spans = [span for run in runs for span in assert_exported(judged, collector, run).values()]
    assert len(runs) > seconds
    assert {span.id for span in spans} == {span.id for span in collector.spans}
    assert [
        span for span in spans if "gen_ai.operation.name" in span.attributes
    ] == []  # nothing but rows: these steps call nothing
    assert len({(span.id, span.parent, span.name, span.began, span.ended) for span in collector.spans}) == len(spans)
