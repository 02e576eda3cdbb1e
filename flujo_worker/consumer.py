"""A Celery consumer that no message can kill.

Stock Celery 5.7 exits on a body of type `application/data`, or one that decodes to a number, and so does the next worker that the
message is given to (celery/celery#4308).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery.worker.consumer import Consumer

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)


class SafeConsumer(Consumer):
    """Rejects and records what the stock handler stumbles over; connection errors pass, for they end the connection."""

    connection_errors: tuple[type[Exception], ...]
    channel_errors: tuple[type[Exception], ...]

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        handle = super().create_task_handler(*args, **kwargs)

        def handle_safely(message: Any) -> Any:
            try:
                return handle(message)
            except (*self.connection_errors, *self.channel_errors):
                raise
            except Exception:
                logger.critical(
                    "message refused: content type %r, %d bytes",
                    message.content_type,
                    len(message.body or b""),
                    exc_info=True,
                )
                message.reject_log_error(logger, self.connection_errors)

        return handle_safely
