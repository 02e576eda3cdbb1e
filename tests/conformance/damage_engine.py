"""A worker on a real Postgres, in this process: its messages wait in a list, and time passes by making every row older.

So a row can be damaged between any two messages, and a worker that knows nothing yet can come to it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from worlds import Postgres

from flujo_client.address import new_run_id
from flujo_client.config.manager import Settings
from flujo_client.config.models import SizeLimits
from flujo_client.contract.envelope import TASK_JOIN, Envelope, JoinSignal
from flujo_client.gateway import requests
from flujo_client.pipeline.cache import InMemoryCache
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.limits import in_force
from flujo_client.pipeline.reference import load_pipeline
from flujo_client.pipeline.submit import Order, new_run
from flujo_client.plan.plan import Backoff
from flujo_client.serial import dumps, loads
from flujo_worker.attempts.lease import Lease
from flujo_worker.attempts.perform import Attempts
from flujo_worker.changed_code.code_registry import CodeRegistry
from flujo_worker.concurrency.event_loop import Loop
from flujo_worker.concurrency.threads import Threads
from flujo_worker.coordinator.coordinator import Coordinator
from flujo_worker.store.postgres.stores import PostgresStores
from flujo_worker.user_code.evaluator import Evaluator, user_code_runtime
from flujo_worker.user_code.hooks import HookCaller
from tests.support.builders import member
from tests.support.sweeping import sweeper_of

ALLOWED = ("damage_pipelines",)
SETTINGS = Settings(
    allowed_imports=ALLOWED,
    worker={"max_lost": 2},
    limits={"snapshot_inline_bytes": 300, "message_max_bytes": 16_777_216},
)
ROUNDS = 30
"""After so many sweeps, with everything that is due delivered in between, whatever is going to end has ended."""


class Bus:
    """The broker: what is sent is put into a list."""

    def __init__(self) -> None:
        self.messages: deque[bytes] = deque()

    def send(self, envelopes: Sequence[Envelope], _fan_out: object = None, *, first: bool = False) -> None:
        wires = [
            JoinSignal(each.ticket.run, each.address).to_wire() if each.kind == "join" else each.to_wire()
            for each in envelopes
        ]
        self.messages.extend(map(dumps, wires))

    def epoch(self) -> str:
        return "one"

    def heads(self, queues: Sequence[str]) -> dict[str, float | None]:
        return dict.fromkeys(queues)


class Engine:
    """The parts of workers that come and go, and what they share."""

    def __init__(self, url: str) -> None:
        self.url, self.bus = url, Bus()
        self.loop, self.threads = Loop(), Threads("damaged")
        self.rows = Postgres(None, url)  # type: ignore[arg-type]
        self.stores: PostgresStores | None = None
        self.begin()

    def begin(self) -> None:
        """Begin with a new worker, which has read nothing yet."""
        if self.stores is not None:
            self.stores.close()
        self.stores = stores = PostgresStores(self.url, pool_max=2).open()
        self.rows.stores = stores
        catalog = CodeRegistry(ALLOWED, stores.code.plan)
        bench = user_code_runtime(SETTINGS, self.loop, self.threads, InMemoryCache())
        self.coordinator = Coordinator(
            stores, self.bus.send, Evaluator(stores, catalog, bench), backoff=Backoff(base_s=0.01), inline=300
        )
        self.me = member("w")
        stores.leases.register_worker(self.me, 1e6)
        lease = Lease(stores.leases, self.me, lease_s=1e6, renew_s=1e5)
        hooks = HookCaller(catalog, bench, strict=False)
        self.attempts = Attempts(stores, self.coordinator, lease, self.loop, self.threads, hooks, SETTINGS, models=None)
        self.sweeper = sweeper_of(stores, self.bus, self.coordinator, catalog, max_lost=2, unpark_every_s=0.0)

    def empty(self) -> None:
        """Forget every row and message, and begin with a new worker."""
        self.rows.empty()
        self.bus.messages.clear()
        self.begin()

    def close(self) -> None:
        self.stores.close()
        self.rows.close()
        self.loop.close()
        self.threads.shutdown()

    def enqueue(self, reference: str, limits: Any = None) -> str:
        """Record a run, and put its first message on the bus."""
        pipeline = load_pipeline(reference, allowed=ALLOWED)
        plan, run = compile_plan(pipeline), new_run_id(1_700_000_000.0)
        order = Order(
            run,
            context={},
            context_model=pipeline.context_model,
            limits=in_force(SETTINGS.budgets, plan, limits, run=run, background=None),
        )
        new = new_run(plan, reference, "in", order, size=SizeLimits(snapshot_inline_bytes=300), allowed=ALLOWED)
        self.rows.ask(requests.record(new))
        self.bus.send([new.first])
        return run

    def deliver(self, draw: random.Random | None = None) -> None:
        """Deliver one message; what it raises is logged, and the message is gone."""
        messages = self.bus.messages
        if draw is not None:
            messages.rotate(draw.randrange(len(messages)))
        wire = loads(messages.popleft())
        try:
            if wire["task"] == TASK_JOIN:
                join_signal = JoinSignal.from_wire(wire)
                self.coordinator.effects.run(self.attempts.signal_join(join_signal.run, join_signal.address))
            else:
                self.attempts.perform(Envelope.from_wire(wire))
        except Exception as error:  # noqa: BLE001 - as Celery does
            self.last_error = error

    def recover(self, *, deliver: bool = True) -> None:
        """What time brings: what is due is found, what no one works at is let go, and all that follows is delivered."""
        self.rows.pass_time(100.0)
        self.stores.leases.register_worker(self.me, 1e6)
        self.stores.leases.release_unowned("w", (), 0.0)
        try:
            self.sweeper.sweep()
        except Exception as error:  # noqa: BLE001 - as the sweeper's own thread does; the next one tries again
            self.last_error = error
        while deliver and self.bus.messages:
            self.deliver()

    def statuses(self, *runs: str) -> Mapping[str, str]:
        found = self.rows.rows("SELECT id, status FROM flujo_runs WHERE id = ANY(%(runs)s)", runs=list(runs))
        return {row["id"]: row["status"] for row in found}
