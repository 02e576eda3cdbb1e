"""The page of the matrix, from what was shown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree as ET

CONTRACT = "contract tests"
SHOWS = {
    "test_chain": "chain",
    "test_fan_out": "fan-out",
    "test_nested": "nested fan-outs",
    "test_kill": "kill -9",
    "test_stop": "orderly stop",
}
"""The tests that run in each pool, and the heads of their columns."""

HEADS = ("Celery", "kombu", "redis-py", "Python", "Postgres")
MOST = 1.3
"""A row may take this many times as long as the newest."""

TEXT = """\
<!-- `make compat` writes this page. -->
# Compatibility

Flujo Worker supports Celery 5.3.6 to 5.7, kombu 5.3.4 to 5.7, redis-py 4.6 to 8, and Python 3.11 to 3.14. Each row of the table is an environment of
wheels with versions that were used together. All tests below ran in it against a real Postgres and a real Redis.

Measured on {date}: {machine}.

{table}

- **Contract tests** state what Flujo Worker needs of Celery, kombu and redis-py: message format, chords, acknowledgements, and how messages are taken
  from Redis.
- **Chain**, **fan-out**, **nested fan-outs**, **kill -9** and **orderly stop** each ran in four pools: that of `flujo worker`, and that of an
  [attached application](../how-to/attach-to-an-existing-celery-app.md) with our pool, with `--pool threads` and with `--pool prefork`.
- **Nested fan-outs** are eight runs at once, each with three fan-outs of three branches inside a fan-out.
- **kill -9** ends a worker while its step runs: another worker runs the step again, and its result counts once.
- **Orderly stop** is SIGTERM: the worker ends its step, gives back its lease, and exits with 0.
- **Sent again** counts the messages of fan-outs that the sweeper had to send, because a first one was lost or came too late. It must be 0.
- **Time** is that of nested fan-outs against the newest row, in the pool of `flujo worker`: the median of rounds in which all rows took turns. It must
  not exceed {most} x.

With `-P gevent` Flujo Worker runs too, and `-P eventlet` is refused by name: [gevent and
eventlet](../how-to/attach-to-an-existing-celery-app.md#gevent-and-eventlet).

Other combinations that satisfy the requirements of the package are likely to work: choose a kombu and a redis-py of your Celery's time, because pip
resolves them apart.

## Beside your versions

`pip install "flujo-worker[worker]"` on Python 3.11 keeps the versions that these public products are installed with (`tests/compat/pins.toml` names
them, with their sources), and takes for the others:

{products}

Where `idna` is older than 3.18, only pydantic-ai 2.31 fits, which pip finds after minutes: `pip install "flujo-worker[worker]" "pydantic-ai-slim<2.32"`
spares it the search.

The oldest row of the first table also has the oldest version of every package that `flujo-worker[worker]` requires directly. An old pydantic-ai differs
in three ways. Before 2.58, retries are turned off at the provider's client, for all who share it, instead of in each request. And the event
`agent.option.dropped` then names only the ignored settings that a model's profile lists. And before 2.51, a step's own schema is not requested from the
provider for an agent whose output type is a model: the answer is still judged by it.
"""


@dataclass
class Shown:
    """What the tests of one environment showed.

    Attributes:
        title: the first cells of its line.
        passed: whether each test passed, by column; its pool, or its name where it has none.
        skipped: why it was not tried.
        ratio: the time of nested fan-outs, against the newest row's.
        sent_again: how many messages were sent again in all.
        exit_code: what pytest ended with.
    """

    title: Sequence[str]
    passed: dict[str, dict[str, bool]] = field(default_factory=dict)
    skipped: str | None = None
    ratio: float | None = None
    sent_again: int = 0
    exit_code: int = 0

    @property
    def is_green(self) -> bool:
        """Return whether nothing failed."""
        if self.skipped is not None:
            return True
        has_all = all(self.passed.get(column) for column in (CONTRACT, *SHOWS.values()))
        passed = all(ok for tests in self.passed.values() for ok in tests.values())
        return (
            has_all
            and passed
            and self.exit_code == 0
            and self.sent_again == 0
            and (self.ratio is None or self.ratio <= MOST)
        )

    def read(self, junit: str) -> None:
        """Add what pytest reported, in its XML."""
        for case in ET.fromstring(junit).iter("testcase"):
            name, _, pool = case.attrib["name"].rstrip("]").partition("[")
            if case.find("skipped") is not None:
                continue
            is_ours = case.attrib["classname"].endswith("test_matrix") and name in SHOWS
            key = pool if is_ours else f"{case.attrib['classname']}.{case.attrib['name']}"
            passed = case.find("failure") is None and case.find("error") is None
            self.passed.setdefault(SHOWS[name] if is_ours else CONTRACT, {})[key] = passed
            for each in case.iter("property"):
                if each.attrib["name"] == "sent_again":
                    self.sent_again += int(each.attrib["value"])

    def cells(self) -> list[str]:
        """Return the line of the table."""
        if self.skipped is not None:
            return [*self.title, f"skipped: {self.skipped}", *[""] * (len(SHOWS) + 2)]
        ratio = "" if self.ratio is None else f"{self.ratio:.2f} x"
        counts = [_count(self.passed.get(column, {})) for column in (CONTRACT, *SHOWS.values())]
        return [*self.title, *counts, str(self.sent_again), ratio]


def _count(tests: dict[str, bool]) -> str:
    count = f"{sum(tests.values())} of {len(tests)}"
    failed = [name for name, passed in tests.items() if not passed]
    return f"{count}; failed: {', '.join(failed)}" if 0 < len(failed) < 3 else count


def table(lines: Iterable[Shown]) -> str:
    """Draw what was shown."""
    heads = [*HEADS, CONTRACT, *SHOWS.values(), "sent again", "time"]
    rows = [heads, ["---"] * len(heads), *(line.cells() for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def page(lines: Iterable[Shown], *, products: str, date: str, machine: str) -> str:
    """Write the page."""
    return TEXT.format(table=table(lines), products=products, date=date, machine=machine, most=MOST)
