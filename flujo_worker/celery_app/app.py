"""The Celery application: Flujo's own, or your app.

    app = FlujoWorker().app                 # celery -A package.module worker -P threads
    FlujoWorker(your_app)                   # your app runs pipelines too

Attaching changes none of your settings, and reads them only when a worker starts: the options of our tasks are set on the tasks, and the
members of their chords are counted by a result backend of their own.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache, cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery import Celery, signals

from flujo_client.config.manager import ConfigManager, Settings
from flujo_client.config.models import SENTINEL
from flujo_client.contract.envelope import TASK_JOIN
from flujo_client.errors import ConfigurationError, ServiceUnreachable
from flujo_client.redact import mask_url
from flujo_client.transport.brokers import broker_for
from flujo_client.transport.wire import register, register_later
from flujo_worker import failpoints
from flujo_worker.celery_app import tasks
from flujo_worker.celery_app.consumer.channel import publish_sparingly
from flujo_worker.celery_app.consumer.gate import ItemGate, guarding
from flujo_worker.celery_app.consumer.pool import AttemptPool
from flujo_worker.celery_app.consumer.private_names import counting_backend
from flujo_worker.celery_app.consumer.refusals import Refusals
from flujo_worker.celery_app.consumer.stopping import (
    AWAY_S,
    STOPPING,
    Intake,
    after,
    on_stop,
    on_stop_signal,
    retire,
    retire_child,
    stop,
    stop_parent,
)
from flujo_worker.celery_app.own_app import own_app
from flujo_worker.concurrency.native import is_patched_by_eventlet, refuse_greenlets

if TYPE_CHECKING:
    from flujo_worker.engine.host import Host
    from flujo_worker.observe.metrics import ProcessMetrics
    from flujo_worker.own_keys import OwnKeys

CONFIGURATION, UNREACHABLE = 2, os.EX_UNAVAILABLE
"""The exit codes for a wrong configuration and for an unreachable service, as of every command."""


class FlujoWorker:
    """Makes a Celery app carry pipelines.

    Args:
        app: your app; Flujo's own when None.
        settings: the addresses of Postgres and Redis, and the options of this worker; when None those of flujo.toml and the environment, and
            what neither says is your app's: the broker, the key prefix, the result backend, and the database of its Django project.

    Raises:
        ConfigurationError: without an app, a setting is malformed or missing. Workers of an app of yours refuse to start instead, so that
            your other processes, such as tests, do start.
    """

    def __init__(self, app: Celery | None = None, *, settings: Settings | None = None) -> None:
        self._given, self._theirs, self._is_own = settings, app, app is None
        if app is None:
            self.app = own_app(self.settings)
        else:
            self.app = ConfigManager.attached = app
            register_later(lambda: self.settings)
        self._hosts: dict[int, Host] = {}
        self._pool: AttemptPool | None = None
        self._slots: int | None = None
        self._search_path = list(sys.path)
        self._lock = threading.Lock()
        self._name, self._is_aside = "", False
        self._metrics: ProcessMetrics | None = None
        self._parents_keys: OwnKeys | None = None
        counting = None if self._is_own else lambda: self._counting
        _carry(self.app, self.host, self._keys, lambda: self.settings, counting=counting)
        if not self._is_own:
            tasks.add_run(self.app, lambda: self.settings)
        self.app.steps["worker"].add(on_stop(self._begin_stop))
        self._listen()

    @cached_property
    def settings(self) -> Settings:
        """Return the settings, which are read when they are first needed.

        Raises:
            ConfigurationError: a setting is malformed or missing, no services run, or your app has another broker.
        """
        settings = self._given or ConfigManager(app=self._theirs).settings()
        if settings.is_embedded:
            from flujo_client.embedded.local import join_services

            settings = join_services(settings)
        if self._theirs is not None:
            _require_the_broker(self._theirs, settings)
        register(settings.keys(), max_bytes=settings.limits.message_max_bytes)
        failpoints.arm(settings.failpoints)
        return settings

    @cached_property
    def _counting(self) -> Any:
        """Return the result backend that counts the parts of our chords in an app of yours, without that app's settings."""
        return counting_backend(own_app(self.settings, fixups=()))

    @property
    def queues(self) -> tuple[str, str]:
        """Return the queues a worker consumes: attempts and control."""
        return self.settings.worker.attempts_queue, self.settings.worker.control_queue

    def host(self) -> Host:
        """Return the engine of this very process, started on first use: after a fork, never before."""
        from flujo_worker.engine.host import Host

        with self._lock:
            host = self._hosts.get(os.getpid())
            if host is None:
                host = Host(
                    self.settings,
                    self.app,
                    is_own_app=self._is_own,
                    on_loop=self._pool is not None,
                    slots=self._slots,
                    consumes=sorted(self.app.amqp.queues.consume_from),
                )
                if not self._is_own:
                    canvas = "flujo_worker.celery_app.canvas"  # loaded when it is needed
                    host.end_tasks_by(lambda payload: import_module(canvas).end_task(self.app, payload))
                host.fire_by(self._enqueue)
                if self.settings.counts_chords:
                    counting: Any = self.app.tasks[TASK_JOIN].backend
                    publish_sparingly(counting.app)
                if self._metrics is not None:
                    host.measure(self._metrics)
                host.start()
                self._hosts.clear()
                self._hosts[os.getpid()] = host
            return host

    def _enqueue(self, pipeline: Any, /, *, value: Any, **options: Any) -> str:
        """Enqueue a run as a client does."""
        from flujo_worker.celery_app.canvas import client_of

        client = client_of(self._theirs, self._get_settings, os.getpid(), is_eager=False)
        return client.enqueue(pipeline, value, **options).id

    def _get_settings(self) -> Settings:
        return self.settings

    def _listen(self) -> None:
        """Receive Celery's signals. Without a `dispatch_uid`, Celery before 5.7 drops those of a second worker in the same process."""
        own: dict[str, Any] = {"weak": False, "dispatch_uid": self}
        signals.celeryd_init.connect(self._prepare, **own)
        signals.setup_logging.connect(self._set_up_logging, **own) if self._is_own else None
        signals.worker_process_init.connect(self._start_in_child, **own)
        signals.worker_ready.connect(self._start_in_main, **own)
        signals.worker_process_shutdown.connect(self._stop, **own)
        signals.worker_shutdown.connect(self._stop, **own)

    def _prepare(self, sender: str = "", instance: Any = None, options: Any = None, **_: Any) -> None:
        """Check a starting worker and add Flujo's queues, which it consumes unless -Q names others.

        Leave an eventlet worker of other queues alone: our code cannot run there.
        """
        if instance is None or instance.app is not self.app:
            return
        self._name = sender
        options = options or {}
        named = set(options.get("queues") or ())
        self._is_aside = is_patched_by_eventlet() and bool(named) and named.isdisjoint(self.queues)
        if self._is_aside:
            return
        pool = str(options.get("pool") or self.app.conf.worker_pool)
        with _ending_the_worker():
            if self.app.conf.task_always_eager:
                raise ConfigurationError(
                    "this Celery app runs tasks eagerly, so nothing would survive a crash",
                    suggestion="unset task_always_eager; to test pipelines without services use flujo_worker.testing",
                )
            refuse_greenlets(pool, self.queues)
        self._require_readiness()
        if self.settings.metrics.port:
            from flujo_worker.observe.metrics import ProcessMetrics

            with _ending_the_worker():
                self._metrics = ProcessMetrics(self.settings.metrics, has_children="prefork" in pool)
        # Celery takes the working directory off the path again once it has found the app.
        sys.path.extend(folder for folder in self._search_path if folder not in sys.path)
        for queue in self.queues:
            # An exchange of its own: an app's default one may be of a type that copies messages, or not be bound to lists at all.
            arguments = self.settings.worker.queue_arguments if self.settings.uses_rabbitmq else None
            self.app.amqp.queues.select_add(
                queue, exchange=queue, exchange_type="direct", routing_key=queue, queue_arguments=arguments
            )

    def _require_readiness(self) -> None:
        """End the worker before it takes a message that it could not process."""
        from flujo_worker.liveness.heartbeat import Heartbeat
        from flujo_worker.store.migrate import START_PATIENCE_S, require_current

        with _ending_the_worker():
            Heartbeat(self.settings.worker.heartbeat_file).begin()
            require_current(self.settings.database(), patience_s=START_PATIENCE_S)
            if self.settings.uses_rabbitmq:
                with suppress(ServiceUnreachable), closing(broker_for(self.settings)) as broker:
                    broker.reach()  # its error about a queue with other arguments says more than Celery's

    def _set_up_logging(self, **_: Any) -> None:
        from flujo_worker.observe.log import configure

        configure(self.settings.log)

    def _start_in_child(self, **_: Any) -> None:
        self._slots = 1
        if self._metrics is not None:
            self._metrics.leave_port()
        on_stop_signal(self._begin_stop_here)
        host = self.host()
        host.steps.retire, host.steps.stop = lambda _: retire_child(host.hand_back), stop_parent
        host.withdraw_by(self._withdraw_parent)

    def _withdraw_parent(self) -> None:
        """Have the main process of this prefork pool take no more of our messages, by Celery's remote control."""
        for queue in self.app.amqp.queues.consume_from:
            if self._is_own or queue in self.queues:
                self.app.control.cancel_consumer(queue, destination=[self._name])

    def _keys(self) -> OwnKeys:
        """Return which keys this process lacks: one with a host, or the main process of a prefork pool, which reads messages."""
        host = self._hosts.get(os.getpid())
        keys = self._parents_keys if host is None else host.keys
        assert keys is not None, "no message is read before a worker is ready"
        return keys

    def _start_in_main(self, sender: Any = None, **_: Any) -> None:
        """Start the host in the main process for pools that run tasks there; prefork's children start their own."""
        if sender is None or sender.app is not self.app or self._is_aside:
            return
        intake = Intake(sender, None if self._is_own else self.queues)
        if _is_prefork(sender.pool):
            from flujo_worker.own_keys import OwnKeys

            self._parents_keys = OwnKeys(self.settings, intake.withdraw)
            return
        if isinstance(sender.pool, AttemptPool):
            self._pool = sender.pool
        self._slots = sender.pool.num_processes
        with _ending_the_worker():
            host = self.host()
        if self._pool is not None and host.engine is not None:
            self._pool.serve(host, host.engine)
            host.throttle(self._pool)
        steps = host.steps
        steps.retire, steps.stop = lambda _: retire(), stop
        if self._is_own:
            steps.pause, steps.resume = intake.pause, intake.resume
        host.withdraw_by(intake.withdraw)

    def _begin_stop(self, worker: Any) -> None:
        """Begin the stop in each process that performs attempts: with prefork, in the pool's."""
        if _is_prefork(worker.pool):
            with suppress(AttributeError):  # after SIGQUIT, Celery has ended the pool before
                for pid in worker.pool.info["processes"]:
                    with suppress(ProcessLookupError):
                        os.kill(pid, STOPPING)
        elif os.getpid() in self._hosts:
            self._begin_stop_here()

    def _begin_stop_here(self) -> None:
        """Record that this process takes no more work, and hand back attempts that have not ended after the grace time.

        It ends without Postgres if that is away for longer.
        """
        host, grace_s = self.host(), self.settings.worker.shutdown_grace_s
        host.announce_stop()
        after(grace_s, host.hand_back)
        after(grace_s + self.settings.agents.cancel_grace_s + AWAY_S, host.give_postgres_up)

    def _stop(self, **_: Any) -> None:
        host = self._hosts.pop(os.getpid(), None)
        if host is not None:
            host.stop()


@contextmanager
def _ending_the_worker() -> Iterator[None]:
    """End the worker if the block fails. Celery ignores other exceptions of signals, and would take messages."""
    try:
        yield
    except Exception as error:
        sys.stderr.write(f"flujo: {error}\n")
        if isinstance(error, ServiceUnreachable):
            raise SystemExit(UNREACHABLE) from error
        raise SystemExit(CONFIGURATION if isinstance(error, ConfigurationError) else 1) from error


def _is_prefork(pool: object) -> bool:
    return "prefork" in type(pool).__module__


def _carry(
    app: Celery,
    host: Callable[[], Host],
    keys: Callable[[], OwnKeys],
    settings: Callable[[], Settings],
    *,
    counting: Callable[[], Any] | None = None,
) -> None:
    """Add our tasks to an app, and a gate before its workers' consumers. Without a backend of their own for `counting`, the app is ours."""
    refusals = Refusals(settings)
    tasks.add(app, host, refusals, keys, counting)
    gate = cache(lambda: ItemGate(app, settings(), refusals, tasks.NAMES, is_alone=counting is None))
    app.steps["consumer"].add(guarding(gate))


def _require_the_broker(app: Celery, settings: Settings) -> None:
    """Raise ConfigurationError if an app reads messages elsewhere than these settings publish them."""
    from flujo_client.config.app_settings import broker_of, place_of

    broker, options = broker_of(app) or "", app.conf.broker_transport_options or {}
    prefix, master = str(options.get("global_keyprefix", "")), options.get("master_name")
    if place_of(broker) != place_of(settings.broker()) or prefix != settings.broker_key_prefix:
        raise ConfigurationError(
            f"this Celery app consumes from {mask_url(broker)} with key prefix '{prefix}', "
            f"pipelines are published to {settings.broker_url} with '{settings.broker_key_prefix}'",
            suggestion="leave FLUJO_BROKER_URL and FLUJO_BROKER_KEY_PREFIX out, or set them to the app's",
        )
    if broker.startswith(SENTINEL) and master != settings.sentinel_master:
        raise ConfigurationError(
            f"this Celery app's `master_name` is {master!r}, but `sentinel_master` is {settings.sentinel_master!r}",
            suggestion="leave FLUJO_SENTINEL_MASTER out, or set it to the `master_name` in the app's broker_transport_options",
        )
