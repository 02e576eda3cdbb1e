"""The baseline: Celery as its manual shows it, no durability."""

import os

import redis
from celery import Celery, chain, chord

from tests.bench.protocol import BROKER

URL = os.environ.get(BROKER, "redis://127.0.0.1:6379/0")
QUEUE = "bench.bare"
app = Celery("bare", broker=URL, backend=URL)
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    task_default_queue=QUEUE,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)
done = redis.Redis.from_url(URL, socket_timeout=None)
DONE = "bench:done"


@app.task(ignore_result=True)
def hop(left: int) -> None:
    """Send the next one; the last says that it is over."""
    if left > 1:
        hop.apply_async((left - 1,))
    else:
        done.rpush(DONE, 1)


@app.task
def noop(value: int = 0) -> int:
    return value


def send_hops(runs: int, steps: int) -> None:
    """Task-sends-task: each task publishes its successor."""
    for _ in range(runs):
        hop.apply_async((steps,))
    for _ in range(runs):
        if done.blpop(DONE, timeout=30) is None:
            raise TimeoutError("a hop was lost: bare Celery does not get it back")


def send_chains(runs: int, steps: int) -> None:
    """A chain per run, results in Redis."""
    sent = [chain(noop.s(0), *(noop.s() for _ in range(steps - 1))).apply_async() for _ in range(runs)]
    for result in sent:
        result.get(timeout=30, interval=0.005)


@app.task(ignore_result=True)
def joined(_parts: list[int]) -> None:
    done.rpush(DONE, 1)


@app.task
def carry(context: dict[str, object]) -> dict[str, object]:
    """Change a little of what is carried."""
    return {**context, "count": int(str(context["count"])) + 1}


@app.task(ignore_result=True)
def arrived(_context: dict[str, object]) -> None:
    done.rpush(DONE, 1)


def send_chord(branches: int) -> None:
    """A chord of no-ops with a body."""
    chord((noop.s(number) for number in range(branches)), joined.s()).apply_async()
    wait_for_one()


def send_carry(context: dict[str, object], steps: int) -> None:
    """A chain that hands a context on, as stock JSON."""
    chain(carry.s(context), *(carry.s() for _ in range(steps - 1)), arrived.s()).apply_async()
    wait_for_one()


def wait_for_one() -> None:
    if done.blpop(DONE, timeout=60) is None:
        raise TimeoutError("it was lost: bare Celery does not get it back")
