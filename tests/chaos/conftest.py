"""A site on which every shape of the monkey's runs has ended, without a fault, and copies of its database to damage."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import pytest

from flujo_worker.chaos.pipelines import SHAPES
from flujo_worker.chaos.site import QUEUES, SiteOptions, with_own_queues
from flujo_worker.chaos.site import Site as ChaosSite
from flujo_worker.chaos.traffic import Traffic
from tests.support.fleet import STEADY, Site, wait_until
from tests.support.services import drop_database, fresh_database

if TYPE_CHECKING:
    from collections.abc import Iterator

CANCELLED = "approval"
"""The shape that is run again, and cancelled at its question."""


class Calm(NamedTuple):
    """A site where nothing fails, and who has enqueued there."""

    site: ChaosSite
    traffic: Traffic
    database: str


@pytest.fixture(scope="module")
def calm(services, tmp_path_factory) -> Iterator[Calm]:
    folder = tmp_path_factory.mktemp("chaos")
    attempts, control, _ = QUEUES
    worker = {**STEADY, "attempts_queue": attempts, "control_queue": control}
    with Site(services, folder, worker=worker) as real:
        site = ChaosSite(with_own_queues(real.settings), SiteOptions("calm", 0, folder))
        site.rows("create_ledger")
        real.workers(arguments=("--queues", ",".join(QUEUES)))
        traffic = Traffic(site, 1)
        for name, shape in SHAPES.items():
            traffic.enqueue(name, shape)
        cancelled = traffic.enqueue(CANCELLED, SHAPES[CANCELLED])
        wait_until(cancelled.approvals, what=real.log)
        assert cancelled.cancel()
        site.rows("record_cancel", run=cancelled.id, asked_at=site.now())
        wait_until(lambda: traffic.answer() or not site.live_runs(), what=real.log)
        real.dismiss()
        site.client.close()  # a database that has clients cannot be copied
        real.client.close()
        real._asking.close()
        yield Calm(site, traffic, urlsplit(real.settings.database()).path[1:])


@pytest.fixture
def copy(services, calm) -> Iterator[ChaosSite]:
    """A copy to damage."""
    url = fresh_database(services, template=calm.database)
    site = ChaosSite(calm.site.settings.with_database(url), SiteOptions("calm", 0, calm.site.log.parent))
    yield site
    site.close()
    drop_database(services, url)
