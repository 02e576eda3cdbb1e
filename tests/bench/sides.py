"""Start sides on services of the benchmark's own, by turns, and collect what they answer."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import psycopg

from flujo_client.embedded import Embedded
from tests.bench.delays import delayed
from tests.bench.figures import Samples, per_step
from tests.bench.meter import Processor, connections, counted, rows_per_step, wait_for_counts, watched
from tests.bench.processes import listening
from tests.bench.protocol import BROKER, DATABASE, STREAMED
from tests.bench.workloads import CONNECTED, OURS, WORKLOADS, Place
from tests.support.services import temporary_folder

PATIENCE_S = 900.0
GRACE_S = 60.0
ROUND_TRIPS = 50
METRICS_PORT = "9541"


@dataclass(frozen=True)
class Side:
    """What takes part.

    Attributes:
        name: in the tables.
        module: of `tests.bench`, that serves the workloads.
        offers: the workloads it has.
        python: of its environment.
        arguments: further ones.
        shows: `observed`: it exports traces, serves metrics, and writes its log as JSON; `streamed`: its runs have streams; `nothing` of these.
    """

    name: str
    module: str = "side_flujo"
    offers: Collection[str] = OURS
    python: Path = Path(sys.executable)
    arguments: tuple[str, ...] = ()
    shows: Literal["observed", "streamed", "nothing"] | None = None

    @property
    def database(self) -> str:
        return "bench_" + "".join(letter if letter.isalnum() else "_" for letter in self.name.lower())


class Services:
    """Fresh embedded services in a folder of their own; a database in both for each side. A context manager."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._numbers: dict[str, int] = {}

    def __enter__(self) -> Self:
        folder = self._stack.enter_context(temporary_folder())
        self._embedded = self._stack.enter_context(Embedded(folder / "bench"))
        self.pids = (self._embedded.postgres_pid, self._embedded.redis_pid)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def of(self, side: Side) -> dict[str, str]:
        """Return the URLs of a side's databases, which are made the first time."""
        if side.name not in self._numbers:
            self._numbers[side.name] = len(self._numbers) + 1
            with psycopg.connect(self._embedded.database_url, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {side.database}")
        database = urlsplit(self._embedded.database_url)._replace(path=f"/{side.database}").geturl()
        broker = f"{self._embedded.broker_url.rpartition('/')[0]}/{self._numbers[side.name]}"
        model = {"OPENAI_BASE_URL": f"http://127.0.0.1:{self._model}/v1", "OPENAI_API_KEY": "unused"}
        return {DATABASE: database, BROKER: broker, **model, **self._observers(side.shows)}

    def _observers(self, shows: str | None) -> dict[str, str]:
        """Return the variables that switch these on; traces go to the model's server, which takes whatever is posted."""
        if shows == "observed":
            collector = f"http://127.0.0.1:{self._model}"
            return {
                "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
                "FLUJO_METRICS_PORT": METRICS_PORT,
                "FLUJO_LOG_JSON": "true",
            }
        return {} if shows is None else {"FLUJO_LOG_JSON": "false", STREAMED: str(int(shows == "streamed"))}

    @cached_property
    def _model(self) -> int:
        """Return the port of a server that answers as a model."""
        return self._stack.enter_context(listening("tests.bench.model_server"))

    @cached_property
    def folder(self) -> Path:
        """Where sides run: the benchmark's own modules are found there, and no product but the one of their environment."""
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "tests").mkdir()
        (folder / "tests" / "__init__.py").touch()
        (folder / "tests" / "bench").symlink_to(Path(__file__).parent)
        return folder


class Running:
    """A side that runs."""

    def __init__(
        self, process: subprocess.Popen[str], connection: psycopg.Connection, broker: str, services: Services
    ) -> None:
        self.process, self.connection, self._broker = process, connection, broker
        self._processor = Processor(process.pid, *services.pids)
        self.offers = set(self._answer()["offers"])

    def measure(self, workload: str) -> dict[str, list[float]]:
        """Run a workload, and return its figures with the processor time that a step took."""
        found: dict[str, list[float]] = {}
        known = WORKLOADS[workload]
        request = known.request or workload
        if known.after:
            self.ask(known.after)
        with watched(self.process.pid, found, workload) if known.concurrency is not None else nullcontext():
            before = self._processor.read()
            answer = self.ask(request)
        used = per_step(before, self._processor.read(), answer["steps"], f"{workload} processor ms: ")
        if workload in CONNECTED:
            held = connections(self.process.pid, self.connection, self._broker, known.processes)
            used |= {f"{workload}, {name}": value for name, value in held.items()}
        renamed = {name.replace(request, workload, 1): values for name, values in answer["figures"].items()}
        return renamed | found | {name: [value] for name, value in used.items()}

    def ask(self, workload: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(workload + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        if "failed" in answer:
            raise RuntimeError(answer["failed"])
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            raise RuntimeError(f"the side ended with {self.process.poll()}" if ready else "the side does not answer")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def running(
    side: Side, services: Services, processes: int, concurrency: int | None = None, delay_ms: float | None = None
) -> Iterator[Running]:
    """Start a side, and end it with its workers; Postgres answers it later if a delay is given."""
    urls = services.of(side)
    arguments = [*side.arguments, f"--processes={processes}"]
    arguments += [] if concurrency is None else [f"--concurrency={concurrency}"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | urls
    near = nullcontext(urls[DATABASE])
    with near if delay_ms is None else delayed(urls[DATABASE], delay_ms) as database:
        process = subprocess.Popen(
            [side.python, "-m", f"tests.bench.{side.module}", *arguments],
            cwd=services.folder,
            env=environment | {DATABASE: database},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            with psycopg.connect(database, autocommit=True) as connection:
                yield Running(process, connection, urls[BROKER], services)
        finally:
            process.stdin.close()
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def measure(services: Services, sides: Sequence[Side], wanted: Collection[str], rounds: int) -> Samples:
    """Measure all sides by turns, forwards and backwards; what is measured once comes last, for it leaves many rows behind."""
    samples = Samples()
    often = [name for name in WORKLOADS if name in wanted and not WORKLOADS[name].is_single]
    once = [name for name in WORKLOADS if name in wanted and WORKLOADS[name].is_single]
    for number, names in enumerate([often] * rounds + [once]):
        for place, group in groupby(names, key=lambda name: WORKLOADS[name].place):
            together = list(group)
            for side in sides if number % 2 == 0 else reversed(sides):
                if chosen := [name for name in together if name in side.offers]:
                    one_turn(samples, side, services, chosen, place)
    return samples


def one_turn(samples: Samples, side: Side, services: Services, chosen: list[str], place: Place) -> None:
    """Measure some workloads of one side; one that fails costs the others nothing."""
    began, name = time.monotonic(), "start"
    try:
        with running(side, services, *place) as started:
            if place[2] is not None:
                samples.add(side.name, {f"round trip, {place[2]:g} ms": round_trips(started.connection)})
            for name in (each for each in chosen if (WORKLOADS[each].request or each) in started.offers):
                figures = attempted(samples, side, started, name)
                samples.add(side.name, figures)
        if "rows" in chosen:
            name = "rows"
            samples.add(side.name, counted_rows(side, services, place[0]))
    except (RuntimeError, OSError) as error:
        samples.failures.append(f"{side.name}, {name}: {error}")
    print(f"{side.name}: {', '.join(chosen)} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def round_trips(connection: psycopg.Connection) -> list[float]:
    """Return the seconds that Postgres takes to answer the shortest statement, for some of them."""
    took = []
    for _ in range(ROUND_TRIPS):
        began = time.perf_counter()
        connection.execute("SELECT 1")
        took.append(time.perf_counter() - began)
    return took


def attempted(samples: Samples, side: Side, started: Running, name: str) -> dict[str, list[float]]:
    """Measure; of a workload that fails nothing is kept but the failure, as long as its side continues."""
    try:
        return started.measure(name)
    except RuntimeError as error:
        if started.process.poll() is not None:
            raise
        samples.failures.append(f"{side.name}, {name}: {error}")
        return {}


def counted_rows(side: Side, services: Services, processes: int) -> dict[str, list[float]]:
    """Run W2 in workers of its own: Postgres counts all of a session's work when that ends."""
    with psycopg.connect(services.of(side)[DATABASE], autocommit=True) as connection:
        wait_for_counts(connection)
        before = counted(connection)
        with running(side, services, processes) as started:
            steps = started.ask("W2")["steps"]
            started.connection.close()
        wait_for_counts(connection)
        return {f"W2 {name}": [value] for name, value in rows_per_step(before, counted(connection), steps).items()}
