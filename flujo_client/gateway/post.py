"""The client's way to Celery: tasks are sent by name, so no worker code is needed here."""

from __future__ import annotations

import logging
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flujo_client.config import mask_url
from flujo_client.contract.envelope import TASK_ATTEMPT, TASK_SWEEP, message_options
from flujo_client.errors import ServiceUnreachable
from flujo_client.gateway.wire import SERIALIZER, register

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery import Celery

    from flujo_client.config import Settings
    from flujo_client.contract.envelope import Envelope

logger = logging.getLogger(__name__)


class Post:
    """Sends messages to workers."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @cached_property
    def _app(self) -> Celery:
        from celery import Celery

        keys = [(name, secret.get_secret_value().encode()) for name, secret in self._settings.signing_keys.items()]
        register(keys, max_bytes=self._settings.limits.message_max_bytes)
        app = Celery("flujo-client", broker=self._settings.broker_url, set_as_current=False)
        app.conf.update(
            accept_content=[SERIALIZER],
            task_ignore_result=True,
            broker_transport_options={"socket_connect_timeout": 5, "socket_timeout": 10},
            task_publish_retry_policy={
                "max_retries": 2,
                "interval_start": 0.1,
                "interval_step": 0.2,
                "interval_max": 0.5,
            },
        )
        return app

    def reach(self) -> None:
        """Connect to the broker.

        Raises:
            ServiceUnreachable: it does not answer.
        """
        try:
            with self._app.producer_pool.acquire(block=True) as producer:
                connection: Any = producer.connection
                connection.ensure_connection(max_retries=1, interval_start=0, timeout=5)
                connection.default_channel.client.ping()
        except Exception as error:
            raise ServiceUnreachable(
                f"the broker does not answer at {mask_url(str(self._settings.broker_url))}: {error}",
                suggestion="check FLUJO_BROKER_URL; nothing was recorded",
                cause=error,
            ) from error

    def publish(self, envelopes: Sequence[Envelope]) -> bool:
        """Send envelopes. False when the broker does not take them: the rows stand, and the sweeper will."""
        try:
            with self._app.producer_pool.acquire(block=True) as producer:
                for envelope in envelopes:
                    self._send(producer, TASK_ATTEMPT, (envelope.to_wire(),), message_options(envelope, time.time()))
        except Exception as error:  # noqa: BLE001 - whatever it is, the run is recorded and will be published
            logger.warning("%d messages left to the sweeper: %s", len(envelopes), error)
            return False
        return True

    def ring(self) -> None:
        """Ask a worker to sweep at once; if that cannot be sent, it will sweep soon anyway."""
        queue = self._settings.worker.control_queue
        try:
            with self._app.producer_pool.acquire(block=True) as producer:
                self._send(producer, TASK_SWEEP, (), {"queue": queue, "expires": 60, "ignore_result": True})
        except Exception as error:  # noqa: BLE001 - best effort
            logger.info("sweep not asked for: %s", error)

    def close(self) -> None:
        """Close the connections to the broker."""
        if "_app" in self.__dict__:
            self._app.close()

    def _send(self, producer: Any, task: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._app.send_task(task, args=args, producer=producer, serializer=SERIALIZER, **options)
