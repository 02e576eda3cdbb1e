"""What the benchmark measures, in one table: the workloads, the rows that compare them, and the targets.

Every process of the benchmark imports this, also those of other projects' environments: standard library only.
"""

from typing import NamedTuple

PROCESSES = 2
KILLS = "FLUJO_BENCH_KILLS"
"""The environment variable that says how often W7 kills."""

W1_RUNS, W1_STEPS = 5, 20
NESTED_RUNS, NESTED = 8, 3
W2_RUNS, W2_STEPS = 200, 10
FANS = (100, 1000)
ITERATIONS = 1000
CARRIED = {"1 KB": 1_000, "100 KB": 100_000, "1 MB": 1_000_000}
CARRIES = 20
WAITING = 500
PAID_FAN = 200
CALLS, CALL_S = 500, 10
DELAYS_MS = (0, 0.5, 1, 5)


Place = tuple[int, int | None, float | None]
"""Worker processes, attempts at once in each, and how much later Postgres answers."""


class Workload(NamedTuple):
    """What is run, and the worker processes that it takes.

    Attributes:
        title: for people.
        processes: worker processes.
        concurrency: attempts at once in each; None leaves the default.
        delay_ms: how much later Postgres answers, through a proxy; None without one.
        request: the name by which a side runs it; empty for its own name.
        after: what the same workers run before, which is not measured.
        is_single: measured in the first round only.
    """

    title: str
    processes: int = PROCESSES
    concurrency: int | None = None
    delay_ms: float | None = None
    request: str = ""
    after: str = ""
    is_single: bool = False

    @property
    def place(self) -> Place:
        """Return what the workloads of one turn have in common."""
        return self.processes, self.concurrency, self.delay_ms


def remote(delay_ms: float) -> dict[str, Workload]:
    """Return the workloads that are measured with a distant Postgres."""
    title = f"with {delay_ms:g} ms to Postgres and back"
    return {
        f"remote W2, {delay_ms:g} ms": Workload(title, delay_ms=delay_ms, request="W2"),
        f"remote W2 bulk, {delay_ms:g} ms": Workload(title, delay_ms=delay_ms, request="W2 bulk"),
        f"remote W3 warm, {delay_ms:g} ms": Workload(title, delay_ms=delay_ms, request="W3 1000", after="W3 1000"),
    }


WORKLOADS = {
    "W1": Workload("one run of 20 steps at a time, idle"),
    "W2": Workload("200 runs of 10 steps, enqueued one by one"),
    "W2 bulk": Workload("200 runs of 10 steps, enqueued with `enqueue_many`"),
    "W2 further": Workload("200 runs of 10 steps, right after as many", request="W2", after="W2"),
    "W2 hops": Workload("200 times 10 tasks, each of which sends the next"),
    "W3 100": Workload("fan-out of 100 and join"),
    "W3 1000": Workload("fan-out of 1000 and join"),
    "W3 further": Workload(
        "fan-out of 1000 and join, not the first in its workers", request="W3 1000", after="W3 1000"
    ),
    "nested": Workload("8 runs, each with 3 fan-outs of 3 in a fan-out"),
    "W4": Workload("loop of 1000 iterations of 2 steps"),
    "W5 1 KB": Workload("20 steps that carry and change a context of 1 KB"),
    "W5 100 KB": Workload("the same with 100 KB"),
    "W5 1 MB": Workload("the same with 1 MB"),
    "one chain": Workload("one run of 20 paid steps at a time, without limits"),
    "one chain, limits": Workload("the same with limits"),
    "chains": Workload("200 runs of 10 paid steps, without limits"),
    "chains, limits": Workload("the same, each run with limits of its own"),
    "fan of 200": Workload("fan-out of 200 paid branches, without limits"),
    "fan of 200, limits": Workload("the same with limits that all branches share"),
    "W6": Workload("500 calls that wait one second, on one worker process", processes=1, concurrency=WAITING),
    "W9": Workload("500 calls of a model at once, of 10 s", processes=1, concurrency=WAITING, after="W9 at once"),
    **{name: workload for delay_ms in DELAYS_MS for name, workload in remote(delay_ms).items()},
    "W8 1": Workload("a durable agent of 47 calls that are answered at once", processes=1),
    "W8 16": Workload("sixteen of them at once", processes=1),
    "rows": Workload("W2 once more, with what Postgres counts", is_single=True),
    "W4 of 10 000": Workload("loop of 10 000 iterations of 2 steps", is_single=True),
    "W7": Workload("kill -9 of the worker that runs a step", processes=3, is_single=True),
}
BARE = frozenset({"W1", "W2", "W2 hops", "W3 100", "W3 1000", "W4", "W5 1 KB", "W5 100 KB", "W5 1 MB"})
OURS = frozenset(WORKLOADS) - {"W2 hops", "W2 further"}
OBSERVED = frozenset({"W2", "W2 bulk", "W2 further"})
PEER = frozenset({"W1", "W2", "W3 100", "W3 1000", "W3 further", "W7"})
LIBRARY = frozenset({"W9"})
DURABLE = frozenset({"W8 1", "W8 16"})
CONNECTED = frozenset({"W3 further", "W6"})
"""Workloads after which the connections of a worker are counted."""
WHOLE = frozenset({"W6", "W7", "W9"}) | DURABLE
"""Workloads whose figure is the seconds of the whole, not of a step."""
LONG = frozenset(name for name in WORKLOADS if name.startswith(("W4 of", "W7", "W8", "W9", "remote")))
"""Workloads that take minutes."""


class Row(NamedTuple):
    """One comparison.

    Attributes:
        title: what is compared.
        figure: ours.
        against: the baseline's figure; None where ours is judged by itself.
        sides: how the names of the sides begin of which the fastest is the baseline: "bare", "library" or "ours".
        is_throughput: the ratio is baseline / ours, and more is better.
        is_beyond: what counts is the difference.
        statistic: "median" or "p99".
        target: the most it may be, or the least of a throughput.
        unit: of figures without a baseline, and of differences.
        goal: what comes after the target.
    """

    title: str
    figure: str
    against: str | None = None
    sides: str = "bare"
    is_throughput: bool = False
    is_beyond: bool = False
    statistic: str = "median"
    target: float | None = None
    unit: str = ""
    goal: float | None = None


ROWS = (
    Row("W1: a sequential step, idle / task-sends-task", "W1", "W1", target=1.25, goal=1.0),
    Row("W1: from the start of a step to the start of the next, p99", "W1 gap", statistic="p99", unit="s"),
    Row("W2: 200 x 10 steps / bare chain, throughput", "W2", "W2", is_throughput=True, target=3.0),
    Row("W2: the same with `enqueue_many`", "W2 bulk", "W2", is_throughput=True),
    Row("W2: the same / task-sends-task", "W2", "W2 hops", is_throughput=True),
    Row("W3: fan-out of 1000 and join / bare chord", "W3 1000", "W3 1000", target=0.6),
    Row("W3: further fan-outs of 1000 / bare chord", "W3 further", "W3 1000"),
    Row("W3: fan-out of 100 and join / bare chord", "W3 100", "W3 100", target=1.0),
    Row(
        "W3: then connections of a worker to Postgres, two of them for limits",
        "W3 further, Postgres connections",
        target=6,
    ),
    Row("W3: then connections of a worker to Redis", "W3 further, Redis connections", target=5),
    Row("W4: a step of a loop of 1000 x 2 / task-sends-task", "W4", "W4", target=1.25, goal=1.0),
    Row("W4: iterations 900 to 1000 / 5 to 105", "W4 late", "W4 early", sides="ours", target=1.2),
    Row("W4: of 10 000 iterations, the last 1000 / the second 1000", "W4 last", "W4 second", sides="ours", target=1.2),
    Row("W4: what these keep in rows, likewise", "W4 last bytes", "W4 second bytes", sides="ours", target=1.05),
    Row("W5: 1 MB carried / bare chain with JSON", "W5 1 MB", "W5 1 MB", target=0.35),
    Row("W5: 100 KB carried / bare chain with JSON", "W5 100 KB", "W5 100 KB"),
    Row("W5: 1 KB carried / bare chain with JSON", "W5 1 KB", "W5 1 KB"),
    Row("W6: 500 calls of one second on one process", "W6", target=1.5, unit="s"),
    Row("W6: peak memory of that process", "W6 memory", target=150, unit="MB"),
    Row("W6: threads of that process", "W6 threads"),
    Row("W6: then its connections to Postgres, two of them for limits", "W6, Postgres connections", target=6),
    Row("W6: then its connections to Redis", "W6, Redis connections", target=5),
    Row("limits: one chain, with / without", "one chain, limits", "one chain", sides="ours", target=1.15),
    Row("limits: 200 chains, with / without", "chains, limits", "chains", sides="ours", target=1.15),
    Row("limits: fan-out of 200, with / without", "fan of 200, limits", "fan of 200", sides="ours", target=1.3),
    *(
        Row(
            f"remote: {name} at {ms:g} ms to Postgres / at 0, throughput",
            f"remote {name}, {ms:g} ms",
            f"remote {name}, 0 ms",
            sides="ours",
            is_throughput=True,
            target=target if ms == 1 else None,
        )
        for name, target in (("W2", 0.8), ("W2 bulk", 0.9), ("W3 warm", 0.9))
        for ms in DELAYS_MS[1:]
    ),
    Row(
        "W9: 500 calls of 10 s, beyond pydantic-ai alone",
        "W9",
        "W9",
        sides="library",
        is_beyond=True,
        target=0.3,
        unit="s",
    ),
    Row(
        "W9: processor time of a call, likewise",
        "W9 processor ms: workers",
        "W9 processor ms: client",
        sides="library",
        is_beyond=True,
        target=0.8,
        unit="ms of a processor",
    ),
    *(
        Row(
            f"W8: {many}, a durable call's {kind}, above none / DBOS's",
            f"W8 {n} {kind}",
            f"W8 {n} {kind}",
            sides="DBOS",
            target=target,
        )
        for n, many in ((1, "one agent"), (16, "sixteen at once"))
        for kind, target in (("processor", 0.25), ("clock", 0.3))
    ),
    Row("W8: one agent, transactions of a call", "W8 1 transactions", target=0.5),
    Row("W8: sixteen at once, transactions of a call", "W8 16 transactions", target=0.1),
    Row("W8: 47 calls replayed / the agent without durability", "W8 replay", "W8 own", sides="ours", target=2.0),
    Row("W7: kill -9 to running again, median", "W7", unit="s"),
    Row("W7: kill -9 to running again, p99", "W7", statistic="p99", target=10.0, unit="s"),
)
