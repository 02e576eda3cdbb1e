"""Flujo's own Celery application, of which everything follows from the settings."""

from __future__ import annotations

from typing import Any, Final

from celery import Celery

from flujo_client.config.manager import Settings
from flujo_client.transport.wire import SERIALIZER
from flujo_worker.celery_app.consumer.channel import connection_for
from flujo_worker.celery_app.consumer.remote import OpenNode

_BRIEFLY = {"max_retries": 3, "interval_start": 0.1, "interval_step": 0.3, "interval_max": 1.0}
_NOTICED: Final = {
    "socket_timeout": 5.0,
    "socket_connect_timeout": 3.0,
    "socket_keepalive": True,
    "health_check_interval": 2,
}
"""A Redis that does not answer is noticed within about five seconds: kombu would wait for ever, and its hub's thread with it."""
HEARTBEAT_S: Final = 20
"""Seconds between heartbeats of a RabbitMQ: after two without one, a connection counts as lost."""


def own_app(settings: Settings, **options: Any) -> Celery:
    backend = None if settings.result_backend_url is None else settings.results()
    app = Celery("flujo", broker=settings.broker(), backend=backend, set_as_current=False, **options)
    app.conf.update(_for_rabbitmq(settings) if settings.uses_rabbitmq else _for_redis(settings))
    app.conf.update(
        accept_content=[SERIALIZER],
        result_accept_content=[SERIALIZER],
        task_serializer=SERIALIZER,
        result_serializer=SERIALIZER,
        task_ignore_result=True,
        task_default_queue=settings.worker.attempts_queue,
        task_create_missing_queues=True,
        worker_prefetch_multiplier=1,
        worker_concurrency=settings.worker.concurrency,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_consumer="flujo_worker.celery_app.consumer.gate:SafeConsumer",
        worker_send_task_events=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        task_publish_retry_policy=_BRIEFLY,
        # A lane's worker is not to wait for Redis: a join signal that is not sent is left to the sweeper (ADR 9).
        result_backend_transport_options={
            "retry_policy": _BRIEFLY,
            "global_keyprefix": settings.broker_key_prefix,
            **settings.sentinel_options(),
        },
        result_backend_thread_safe=True,  # one pool of connections for all threads, not a connection for each
        redis_socket_timeout=5.0,
        redis_socket_connect_timeout=3.0,
        redis_socket_keepalive=True,
        result_expires=604_800,
    )
    app.amqp.Connection = connection_for()
    # Only now: the mailbox keeps the serializer that the app has when it is made.
    app.control.mailbox.node_cls = OpenNode  # type: ignore[attr-defined]  # its stubs lack it
    return app


def _for_redis(settings: Settings) -> dict[str, Any]:
    return {
        "broker_transport_options": {
            **_NOTICED,
            "max_connections": 1024,
            "global_keyprefix": settings.broker_key_prefix,
            # The claim refuses doubles and the sweeper republishes: nothing rests on either value (ADR 2).
            "ack_emulation": settings.worker.broker_acks,
            "visibility_timeout": 3600,
            **settings.sentinel_options(),
        }
    }


def _for_rabbitmq(settings: Settings) -> dict[str, Any]:
    return {
        "broker_transport_options": {"confirm_publish": True},
        "broker_heartbeat": HEARTBEAT_S,
        "worker_enable_prefetch_count_reduction": False,  # the pool knows how many messages it has room for
        # For queues that steps name, and that begin with the first worker that consumes them.
        "task_queue_max_priority": settings.worker.queue_arguments.get("x-max-priority"),
        "task_create_missing_queue_type": settings.worker.queue_type,
    }
