"""A customer who keeps enqueueing whatever the weather, and opens gates at random. Knows no fault and judges nothing."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import psycopg
from chaos_pipelines import CONTAINERS, SHAPES

from flujo_client.errors import ServiceUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleet import Site

    from flujo_client.api.handle import RunHandle

T = TypeVar("T")

MOST_GATES = 6
PATIENCE_S = 30.0


class Ordered(NamedTuple):
    """A run, and the shape it was enqueued as."""

    shape: str
    run: RunHandle


def patiently(act: Callable[[], T]) -> T:
    """Ask again while a service is away, as a client of a system under repair has to."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return act()
        except (ServiceUnreachable, psycopg.OperationalError):
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


class Customer:
    """Enqueues small bursts of runs until told to stop. What it could not enqueue it asks again under the same key."""

    def __init__(self, site: Site, seed: int) -> None:
        self._site, self._draw = site, random.Random(f"customer {seed}")
        self._enough = threading.Event()
        self._shut: list[RunHandle] = []
        self._orders: list[Ordered] = []
        self._aside = ThreadPoolExecutor(1, thread_name_prefix="customer")

    def start(self) -> None:
        """Order from now on."""
        self._ordering = self._aside.submit(self._order_and_open)

    def stop(self) -> list[Ordered]:
        """Order nothing more and open every gate; give what was ordered."""
        self._enough.set()
        self._ordering.result()
        self._aside.shutdown()
        for run in self._shut:
            self._site.open_gate(run.id)
        return self._orders

    def _order_and_open(self) -> None:
        while not self._enough.wait(self._draw.uniform(0.1, 0.6)):
            for _ in range(self._draw.randint(1, 8)):
                self._order()
            if self._shut and self._draw.random() < 0.3:
                self._site.open_gate(self._shut.pop(self._draw.randrange(len(self._shut))).id)

    def _order(self) -> None:
        shape = self._draw.choice(
            [name for name in [*SHAPES, *CONTAINERS] if name != "gated" or len(self._shut) < MOST_GATES]
        )
        name, key = f"chaos_pipelines:{shape}", f"order {len(self._orders)}"
        run = patiently(lambda: self._site.client.enqueue(name, [], context={}, idempotency_key=key))
        self._orders.append(Ordered(shape, run))
        if shape == "gated":
            self._shut.append(run)
