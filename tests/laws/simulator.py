"""The simulator: a seed is a schedule of everything that can happen to messages, workers, services and runs, and then of peace.

Several workers stop at every boundary of claim, permit, merge and publish, and continue in any order. A broken law names the command that runs
its schedule again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from simulated_runs import SETTINGS, THEMES, Case, answer_all, prepared
from simulated_worker import LEASE_S, RENEW_S, SimulatedWorker, Task
from simulated_world import CLOCK, Broker, Died, FuseKind, OneLoop, OneThread
from simulation_laws import LawBroken, Watch, laws_at_the_end

from flujo_client.pipeline.cache import InMemoryCache
from flujo_worker.errors import DispatchError, StoreError
from flujo_worker.store.memory.tables import Tables
from flujo_worker.user_code.evaluator import user_code_runtime
from tests.support.memory import AllInMemory, asked

LOOP, THREADS = OneLoop(), OneThread()
WORKERS = 3
ROUNDS = 60
"""After so many sweeps in peace, each after a longer time than the last, what has not ended never will."""
USUAL = {
    "enqueue": 6,
    "receive": 16,
    "step": 50,
    "finish": 12,
    "wait": 5,
    "sweep": 6,
    "mark": 4,
    "admit": 4,
    "answer": 5,
}
"""What happens in any case, and how often in comparison."""
FAULTS = {"lose": 3, "double": 4, "kill": 2, "cut": 8, "stall": 4, "flush": 0.5, "cancel": 0.7, "fail_over": 0.5}
AWAKENED = 0.1
"""How often a stopped process continues after an event."""
STRENGTHS = (0.0, 0.3, 1.0, 3.0)
"""How much more often than usual a fault comes in a schedule: most faults show where others are rare."""
FUSE_KINDS: tuple[FuseKind, ...] = ("dies", "asks again", "gives up")
ACTS = ("commit",) * 4 + ("claim", "send") * 2
ACTS += (
    "request_permit",
    "release_permit",
    "admit",
    "signal_join",
    "due",
    "mark_sent",
    "count",
    "open_chord",
    "envelopes",
)
ACTS += ("renew", "stop", "wind_down_branches", "child_run")
"""Where a process dies or misses an answer."""


class Simulation:
    """One schedule.

    Args:
        seed: what everything is drawn from.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.luck, self.trace = seed, Random(seed), list[str]()
        self.stores, self.broker = AllInMemory(Tables(CLOCK)), Broker(counts_chords=seed % 3 != 0)
        self.watch = Watch(self.stores)
        self._catalog, cases = prepared()
        self._bench = user_code_runtime(SETTINGS, LOOP, THREADS, InMemoryCache(clock=CLOCK))  # type: ignore[arg-type]
        theme = self.luck.choice(THEMES)
        self.to_come = [cases[name] for name in self.luck.sample(theme, self.luck.randint(1, 4))]
        self.cases: list[Case] = []
        self._made, self._stopped = 0, None
        self._replica: Callable[[], None] | None = None
        self.workers = [self._worker() for _ in range(WORKERS)]
        self._pass_time(LEASE_S + RENEW_S)  # from now on they may judge each other

    def run(self) -> Simulation:
        """Let everything happen, then nothing more but what recovers; raise LawBroken with the way to see it again."""
        try:
            self._disturb()
            self._recover()
            laws_at_the_end(self.stores, self.broker, self.watch, self.cases)
        except LawBroken as broken:
            way = (
                f"FLUJO_SEED={self.seed} .venv/bin/python -m pytest -s tests/laws/test_laws_simulation.py -k laws_hold"
            )
            raise LawBroken(f"seed {self.seed}: {broken}\nTo see the schedule: {way}") from broken
        finally:
            for worker in self.workers:
                worker.die()
        return self

    def _disturb(self) -> None:
        luck = self.luck
        faults = {name: often * luck.choice(STRENGTHS) for name, often in FAULTS.items()}
        weights = USUAL | faults
        for name in luck.choices(list(weights), list(weights.values()), k=luck.randint(20, 200)):
            getattr(self, f"_{name}")()
            if luck.random() < AWAKENED:
                self._stopped = None
            self.watch.look()

    # what happens

    def _enqueue(self) -> None:
        if not self.to_come:
            return
        case = self.to_come.pop()
        self._record(f"enqueue {case.name} as {case.run}")
        self.stores.client.record(case.new)
        self.cases.append(case)
        if self.luck.random() < 0.9 and not self.stores.reads.is_waiting(case.run):
            self.broker.put([case.new.first])

    def _receive(self) -> None:
        if messages := self.broker.messages:
            task = self._one().receive(messages.pop(self.luck.randrange(len(messages))))
            self._record(f"{task.worker.name} receives {task.message.name}")

    def _step(self) -> None:
        """One delivery continues for a while, past one boundary or a few."""
        if self._tasks:
            task = self.luck.choice(self._tasks)
            for _ in range(self.luck.randint(1, 5)):
                if task in task.worker.tasks:
                    self._advance(task)

    def _finish(self) -> None:
        """One delivery continues to its end."""
        if self._tasks:
            task = self.luck.choice(self._tasks)
            while task in task.worker.tasks:
                self._advance(task)

    def _wait(self) -> None:
        self._pass_time(self.luck.choice([0.1, 1.0, 2.5, 6.0, 20.0]))

    def _stall(self) -> None:
        """A process stops for longer than its lease, often just before a merge; soon it continues as if nothing had been."""
        merging = [task.worker for task in self._tasks if task.at == "merge"]
        self._stopped = self.luck.choice(merging or self.workers)
        self._pass_time(LEASE_S + 1.0)
        self._sweep()

    def _sweep(self) -> None:
        worker = self._one()
        self._record(f"{worker.name} sweeps")
        self._act(worker, worker.sweeper.sweep)

    def _mark(self) -> None:
        self._act(worker := self._one(), worker.mark)

    def _admit(self) -> None:
        self._act(worker := self._one(), worker.admit)

    def _answer(self) -> None:
        if self.cases:
            next(answer_all(self.stores, self.luck.choice(self.cases).run), None)

    def _lose(self) -> None:
        if messages := self.broker.messages:
            self._record(f"{messages.pop(self.luck.randrange(len(messages))).name} is lost")

    def _double(self) -> None:
        if self.broker.messages:
            message = self.luck.choice(self.broker.messages)
            self.broker.messages.append(message)
            self._record(f"{message.name} comes twice")

    def _kill(self) -> None:
        self._bury(self._one())

    def _cut(self) -> None:
        """Soon a process dies, or misses an answer, in the middle of what it does."""
        luck, worker = self.luck, self._one()
        at, what, before = luck.choice(ACTS), luck.choice(FUSE_KINDS), luck.random() < 0.5
        self._record(f"{worker.name} {what} {'before' if before else 'after'} its next {at}")
        worker.fuse.light(at, what, before=before)

    def _flush(self) -> None:
        self._record("the broker loses everything")
        self.broker.flush()

    def _fail_over(self) -> None:
        """The replica of the store receives nothing from now on, or takes its place: what was committed since then is lost."""
        if self._replica is None:
            self._record("the replica falls behind")
            self._replica = self.watch.replica()
            return
        self._record("the replica takes over")
        self._replica()
        self._replica = None
        self.cases = [case for case in self.cases if case.run in self.stores.tables.runs]

    def _cancel(self) -> None:
        if self.cases:
            case = self.luck.choice(self.cases)
            self._record(f"cancel {case.run}: {asked(self.stores).request_cancel(case.run)}")

    # peace

    def _recover(self) -> None:
        self._stopped = None
        for worker in self.workers:
            worker.fuse.put_out()
        while self.to_come:
            self._enqueue()
        quiet = 0
        for number in range(ROUNDS):
            self._deliver_all()
            for case in self.cases:
                list(answer_all(self.stores, case.run))
            quiet = 0 if any(each.is_live for each in self.stores.tables.runs.values()) else quiet + 1
            if quiet == 3 and not self.broker.messages:
                return
            self._pass_time(min(200.0, 2.0 * 1.4**number))
            for worker in self.workers:
                self._act(worker, worker.mark)
                self._act(worker, worker.admit)
            self._act(self.workers[0], self.workers[0].sweeper.sweep)
        raise LawBroken(f"not at rest: {self._left()}")

    def _deliver_all(self) -> None:
        """Let every message and every delivery come to its end, in any order."""
        while (tasks := self._tasks) or self.broker.messages:
            if self.broker.messages and (not tasks or self.luck.random() < 0.1):
                self._receive()
            else:
                self._advance(self.luck.choice(tasks))

    def _left(self) -> str:
        rows = [*self.stores.tables.runs.items(), *self.stores.tables.attempts.items()]
        live = [f"{name} {row.status}" for name, row in rows if row.is_live]
        return f"{live}, {len(self.broker.messages)} messages"

    # how

    @property
    def _running(self) -> list[SimulatedWorker]:
        return [each for each in self.workers if each is not self._stopped]

    @property
    def _tasks(self) -> list[Task]:
        return [task for worker in self._running for task in worker.tasks]

    def _one(self) -> SimulatedWorker:
        return self.luck.choice(self._running)

    def _advance(self, task: Task) -> None:
        self._record(f"{task.worker.name} continues {task.message.name}: {task.at}")
        self._act(task.worker, lambda: self._step_of(task))

    def _step_of(self, task: Task) -> None:
        try:
            is_under_way = task.step()
        except (StoreError, DispatchError):
            is_under_way = False
            if self.luck.random() < 0.5:
                self.broker.messages.append(task.message)  # it was not acknowledged
        if not is_under_way:
            task.worker.tasks.remove(task)

    def _act(self, worker: SimulatedWorker, act: Callable[[], Any]) -> None:
        """Let a worker act. What a lost connection prevents is left to others."""
        with suppress(StoreError, DispatchError):
            try:
                act()
            except Died:
                self._bury(worker)

    def _bury(self, worker: SimulatedWorker) -> None:
        """End a process, and begin another one in its place. Its lease lasts until it is over."""
        if worker not in self.workers:
            return
        self._record(f"{worker.name} is dead, with {[each.message.name for each in worker.tasks]}")
        worker.die()
        self._stopped = None if worker is self._stopped else self._stopped
        self.workers[self.workers.index(worker)] = self._worker()

    def _worker(self) -> SimulatedWorker:
        self._made += 1
        return SimulatedWorker(
            f"w{self._made}", self.stores, self.broker, self._bench, self._catalog, self.watch.statement
        )

    def _pass_time(self, seconds: float) -> None:
        self._record(f"{seconds:g} s pass" + (f", {self._stopped.name} is stopped" if self._stopped else ""))
        while seconds > 0:
            CLOCK.sleep(min(seconds, RENEW_S))
            seconds -= RENEW_S
            for worker in self._running:
                self._act(worker, worker.renew)

    def _record(self, what: str) -> None:
        self.trace.append(what)
