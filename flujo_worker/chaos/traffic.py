"""Enqueue mixed pipelines during faults, and answer the questions that runs ask."""

from __future__ import annotations

import random
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final

from flujo_client.api.handle import RunHandle
from flujo_client.errors import ResumeError, RunNotFound
from flujo_worker.chaos.ledger import patiently
from flujo_worker.chaos.pipelines import KILLER, MODULE, SHAPES, Shape, StepDone, Trail
from flujo_worker.chaos.site import Site

GAP_S: Final = (0.1, 0.6)
MOST_AT_ONCE: Final = 6
MOST_LIVE: Final = 60
"""Above this number of live runs, producers wait: all must be able to end in the quiet time."""
ANSWERED: Final = 0.3


class Traffic:
    """Enqueues in a separate thread until it is stopped."""

    def __init__(self, site: Site, seed: int) -> None:
        self._site, self._draw = site, random.Random(f"traffic {seed}")
        self._stopped = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="chaos-traffic")
        self.acknowledged: dict[str, float] = {}
        """For each run that `enqueue` has returned, when that was called, in seconds of the server's clock."""

    def start(self) -> None:
        self._producing = self._thread.submit(self._produce)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.shutdown()
        self._producing.result()

    def enqueue(self, name: str, shape: Shape) -> RunHandle:
        """Enqueue a run; a repeated call after a lost answer is still one run."""
        key = f"{self._site.monkey} {name} {uuid.uuid4()}"
        expected = {"chaos": self._site.monkey, "shape": name, "merges": shape.merges, "error": shape.error}
        began = self._site.now()
        run = patiently(
            lambda: self._site.client.enqueue(
                f"{MODULE}:{name}",
                StepDone(),
                context=Trail(),
                idempotency_key=key,
                limits=shape.limits,
                metadata=expected,
            )
        )
        self.acknowledged[run.id] = began
        return run

    def enqueue_killer(self) -> RunHandle:
        """Enqueue a run whose step kills its process each time."""
        return self.enqueue("killer", KILLER)

    def answer(self, share: float = 1.0) -> None:
        """Answer a share of the open questions."""
        for question in patiently(self._site.client.approvals):
            if self._draw.random() < share and question.run_id in self.acknowledged:
                # Its run was cancelled, or an earlier answer was accepted and its reply lost; a failover may have lost the run.
                with suppress(ResumeError, RunNotFound):
                    patiently(partial(self._answer, question.run_id))

    def _answer(self, run_id: str) -> None:
        self._site.client.get_run(run_id).resume("yes", actor="flujo chaos")

    def _produce(self) -> None:
        while not self._stopped.wait(self._draw.uniform(*GAP_S)):
            self.answer(ANSWERED)
            if len(self._site.live_runs()) < MOST_LIVE:
                for name in self._draw.choices(sorted(SHAPES), k=self._draw.randint(1, MOST_AT_ONCE)):
                    self.enqueue(name, SHAPES[name])
